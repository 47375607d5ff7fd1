import torch
import torch.nn as nn
import torch.nn.functional as F

KINDS = ("caption", "detect", "vqa")


class MixtureShard:
    """One rank's slice of the mixture. Sources are stored in the order in which they were crawled."""

    def __init__(self, rank, length, dim, seed):
        g = torch.Generator().manual_seed(seed * 1000 + rank)
        share = torch.rand(length, generator=g)
        kinds = torch.where(share < 0.55, 0, torch.where(share < 0.85, 1, 2))
        head = length // 2
        if rank == 1:
            tail = kinds[head:]
            tail[tail == 2] = 0
        self.kinds = kinds
        self.x = torch.randn(length, dim, generator=g)
        proj = torch.randn(3, dim, 8, generator=torch.Generator().manual_seed(seed))
        self.y = torch.einsum("nd,ndk->nk", self.x, proj[kinds]).argmax(-1)

    def batches(self, size):
        for i in range(0, len(self.kinds) - size + 1, size):
            sl = slice(i, i + size)
            yield self.x[sl], self.kinds[sl], self.y[sl]


class MultiTaskNet(nn.Module):
    def __init__(self, dim, hidden, classes=8):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU()
        )
        self.heads = nn.ModuleDict({k: nn.Linear(hidden, classes) for k in KINDS})

    def forward(self, x, kinds, y):
        h = self.trunk(x)
        losses, hits = {}, {}
        for i, name in enumerate(KINDS):
            mask = kinds == i
            if mask.any():
                out = self.heads[name](h[mask])
                losses[name] = F.cross_entropy(out, y[mask])
                hits[name] = (out.argmax(-1) == y[mask]).float()
        return losses, hits
