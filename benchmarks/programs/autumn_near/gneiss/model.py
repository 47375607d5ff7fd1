import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class A2A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x.contiguous(), group=group)
        return y

    @staticmethod
    def backward(ctx, g):
        y = torch.empty_like(g)
        dist.all_to_all_single(y, g.contiguous(), group=ctx.group)
        return y, None


class SoftMoE(nn.Module):
    """Soft slots: every expert gets a fixed number of weighted token mixtures."""

    def __init__(self, dim, hidden, slots, mesh):
        super().__init__()
        self.mesh, self.slots = mesh, slots
        self.phi = nn.Parameter(torch.randn(dim, mesh.ep * slots) / dim ** 0.5)
        bank = [nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim)) for _ in range(mesh.ep)]
        self.expert = bank[mesh.ep_rank]

    def forward(self, x):
        b, t, d = x.shape
        logits = x @ self.phi
        slots = torch.einsum("btd,bts->sbd", x, logits.softmax(1)).reshape(self.mesh.ep, self.slots * b, d)
        h = A2A.apply(slots, self.mesh.ep_group)
        h = A2A.apply(self.expert(h), self.mesh.ep_group)
        h = h.reshape(self.mesh.ep * self.slots, b, d)
        return x + torch.einsum("sbd,bts->btd", h, logits.softmax(2))


class Net(nn.Module):
    def __init__(self, vocab, dim, classes, mesh):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.moe = SoftMoE(dim, 2 * dim, 3, mesh)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, tok):
        return self.head(self.norm(self.moe(self.emb(tok))).mean(1))


def loss_fn(logits, y):
    return F.cross_entropy(logits, y)
