"""Expert-parallel layer: tokens travel to the rank that owns their expert and back."""
import torch
import torch.distributed as dist
import torch.nn as nn


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, out_splits, in_splits):
        ctx.splits = (out_splits, in_splits)
        out = x.new_empty((sum(out_splits), x.shape[1]))
        dist.all_to_all_single(out, x.contiguous(), out_splits, in_splits)
        return out

    @staticmethod
    def backward(ctx, grad):
        out_splits, in_splits = ctx.splits
        gx = grad.new_empty((sum(in_splits), grad.shape[1]))
        dist.all_to_all_single(gx, grad.contiguous(), in_splits, out_splits)
        return gx, None, None


class Expert(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.net = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, tokens):
        return self.net(tokens)


class HashMoE(nn.Module):
    """Routing by domain id (hash layer), gate value learned per domain."""

    def __init__(self, dim, n_domains):
        super().__init__()
        self.expert = Expert(dim)
        self.gate = nn.Embedding(n_domains, 1)
        nn.init.zeros_(self.gate.weight)

    def reset_expert(self):
        for m in self.expert.net:
            if isinstance(m, nn.Linear):
                m.reset_parameters()

    def forward(self, x, domain):
        shape = x.shape
        flat, dom = x.reshape(-1, shape[-1]), domain.reshape(-1)
        world = dist.get_world_size()
        dest = dom % world
        order = torch.argsort(dest, stable=True)
        send = torch.bincount(dest, minlength=world)
        recv = torch.empty_like(send)
        dist.all_to_all_single(recv, send)
        s, r = send.tolist(), recv.tolist()
        routed = _AllToAll.apply(flat[order], r, s)
        done = self.expert(routed)
        back = _AllToAll.apply(done, s, r)
        out = torch.empty_like(flat).index_copy(0, order, back)
        return (out * torch.sigmoid(self.gate(dom))).view(shape)
