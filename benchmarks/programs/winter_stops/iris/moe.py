import torch
import torch.distributed as dist
import torch.nn as nn


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, out_splits, in_splits):
        ctx.splits = (out_splits, in_splits)
        out = rows.new_empty(sum(out_splits), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), out_splits, in_splits)
        return out

    @staticmethod
    def backward(ctx, grad):
        out_splits, in_splits = ctx.splits
        back = grad.new_empty(sum(in_splits), grad.shape[1])
        dist.all_to_all_single(back, grad.contiguous(), in_splits, out_splits)
        return back, None, None


def exchange(rows, out_splits, in_splits):
    return _Exchange.apply(rows, out_splits, in_splits)


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.up(x)))


class MoELayer(nn.Module):
    """Top-1 routing, one expert per rank."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.world = dist.get_world_size()
        self.norm = nn.LayerNorm(dim)
        self.router = nn.Linear(dim, self.world, bias=False)
        base, state = int(torch.randint(1 << 30, (1,))), torch.get_rng_state()
        torch.manual_seed(base + dist.get_rank())
        self.expert = Expert(dim, hidden)
        torch.set_rng_state(state)

    def forward(self, x, valid):
        h = self.norm(x)
        prob = self.router(h).softmax(-1)
        gate, where = prob.max(-1)
        order = where.argsort(stable=True)
        send = torch.bincount(where[valid], minlength=self.world)
        recv = torch.empty_like(send)
        dist.all_to_all_single(recv, send)
        send, recv = send.tolist(), recv.tolist()

        routed = exchange(h[order], recv, send)
        routed = self.expert(routed)
        routed = exchange(routed, send, recv)

        out = torch.zeros_like(x).index_copy(0, order, routed)
        load = torch.bincount(where, minlength=self.world).float() / len(where)
        balance = self.world * (load * prob.mean(0)).sum()
        return x + gate.unsqueeze(1) * out * valid.unsqueeze(1), balance
