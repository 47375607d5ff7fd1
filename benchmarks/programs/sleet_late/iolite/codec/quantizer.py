import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Quantizer(nn.Module):
    """Nearest-code lookup with moving-average code updates and a straight-through gradient."""

    def __init__(self, codes=32, dim=16, decay=0.9, eps=1e-5):
        super().__init__()
        self.decay, self.eps = decay, eps
        table = torch.randn(codes, dim)
        self.register_buffer("table", table)
        self.register_buffer("usage", torch.ones(codes))
        self.register_buffer("sums", table.clone())

    @torch.no_grad()
    def _refresh(self, flat, onehot):
        n = onehot.sum(0)
        s = onehot.t() @ flat
        self.usage.mul_(self.decay).add_(n, alpha=1 - self.decay)
        self.sums.mul_(self.decay).add_(s, alpha=1 - self.decay)
        total = self.usage.sum()
        smooth = (self.usage + self.eps) / (total + self.eps * len(self.usage)) * total
        self.table.copy_(self.sums / smooth.unsqueeze(1))

    def forward(self, z):
        flat = z.detach().reshape(-1, z.shape[-1])
        idx = torch.cdist(flat, self.table).argmin(1)
        q = self.table[idx].view_as(z)
        if self.training:
            self._refresh(flat, F.one_hot(idx, len(self.table)).float())
        commit = F.mse_loss(z, q.detach())
        return z + (q - z).detach(), commit, idx
