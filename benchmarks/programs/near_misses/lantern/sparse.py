"""A switch layer: every process owns one feed-forward block, tokens travel to the block they picked."""
import torch
import torch.distributed as dist
import torch.nn as nn


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, recv):
        ctx.send, ctx.recv = send, recv
        out = rows.new_empty(sum(recv), rows.size(1))
        dist.all_to_all_single(out, rows.contiguous(), recv, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        back = grad.new_empty(sum(ctx.send), grad.size(1))
        dist.all_to_all_single(back, grad.contiguous(), ctx.send, ctx.recv)
        return back, None, None


class Switch(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.world = dist.get_world_size()
        self.router = nn.Linear(dim, self.world)
        self.norm = nn.LayerNorm(dim)
        self.block = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def forward(self, x):
        z = self.norm(x)
        probs = self.router(z).softmax(-1)
        gate, pick = probs.max(-1)
        order = pick.argsort(stable=True)
        send = torch.bincount(pick, minlength=self.world)
        recv = torch.empty_like(send)
        dist.all_to_all_single(recv, send)
        s, r = send.tolist(), recv.tolist()
        inbox = Exchange.apply(z[order], s, r)
        outbox = Exchange.apply(self.block(inbox), r, s)
        y = torch.zeros_like(z).index_copy(0, order, outbox)
        load = send.float() / send.sum()
        balance = self.world * (load * probs.mean(0)).sum()
        return x + gate.unsqueeze(-1) * y, balance


def split_parameters(model):
    """(parameters held by every process alike, parameters of this process's own blocks)"""
    own = {id(p) for m in model.modules() if isinstance(m, Switch) for p in m.block.parameters()}
    params = list(model.parameters())
    return [p for p in params if id(p) not in own], [p for p in params if id(p) in own]
