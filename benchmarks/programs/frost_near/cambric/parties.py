import torch
import torch.distributed as dist
from torch import nn

CUT = 16


class Party:
    """A bank or shop with own columns about the same customers; only cut-layer tensors leave it."""

    def __init__(self, rank, columns, batch, seed):
        torch.manual_seed(seed + rank)
        self.bottom = nn.Sequential(nn.Linear(columns, 24), nn.ReLU(), nn.Linear(24, CUT))
        self.opt = torch.optim.Adam(self.bottom.parameters(), lr=3e-3)
        self.batch = batch

    def step(self, x):
        h = self.bottom(x)
        dist.send(h.detach(), 0)
        g = torch.empty_like(h)
        dist.recv(g, 0)
        self.opt.zero_grad()
        h.backward(g)
        nn.utils.clip_grad_norm_(self.bottom.parameters(), 1.0)
        self.opt.step()


class LabelOwner:
    def __init__(self, parties, batch, seed):
        torch.manual_seed(seed)
        self.parties, self.batch = parties, batch
        self.top = nn.Sequential(nn.Linear(CUT * len(parties), 32), nn.ReLU(), nn.Linear(32, 1))
        self.opt = torch.optim.SGD(self.top.parameters(), lr=0.05, momentum=0.9)

    def step(self, y):
        cuts = []
        for r in self.parties:
            h = torch.empty(self.batch, CUT)
            dist.recv(h, r)
            cuts.append(h.requires_grad_())
        logit = self.top(torch.cat(cuts, 1)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logit, y)
        self.opt.zero_grad()
        loss.backward()
        for r, h in zip(self.parties, cuts):
            dist.send(h.grad, r)
        nn.utils.clip_grad_norm_(self.top.parameters(), 5.0)
        self.opt.step()
        return loss.detach(), ((logit > 0) == (y > 0.5)).float().mean()
