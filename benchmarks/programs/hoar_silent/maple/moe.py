import torch
import torch.distributed as dist
import torch.nn as nn


class Exchange(torch.autograd.Function):
    """all_to_all with uneven splits; the backward sends the gradients the other way."""

    @staticmethod
    def forward(ctx, x, send, recv):
        ctx.send, ctx.recv = send, recv
        out = x.new_empty(sum(recv), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), recv, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(sum(ctx.send), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), ctx.send, ctx.recv)
        return out, None, None


class MoELayer(nn.Module):
    """One expert on each rank, top-1 routing."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.world = dist.get_world_size()
        self.gate = nn.Linear(dim, self.world)
        self.expert = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
        for p in self.expert.parameters():
            p.is_expert = True

    def forward(self, x):
        prob = self.gate(x).softmax(-1)
        weight, where = prob.max(-1)
        order = where.argsort(stable=True)
        send = torch.bincount(where, minlength=self.world)
        recv = torch.empty_like(send)
        dist.all_to_all_single(recv, send)
        send, recv = send.tolist(), recv.tolist()
        tokens = Exchange.apply(x[order], send, recv)
        back = Exchange.apply(self.expert(tokens), recv, send)
        y = torch.empty_like(x).index_copy(0, order, back)
        load = torch.nn.functional.one_hot(where, self.world).float().mean(0)
        return x + weight[:, None] * y, self.world * (load * prob.mean(0)).sum()
