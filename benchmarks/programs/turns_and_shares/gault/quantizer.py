"""Vector quantiser whose codes follow an exponential average of their members."""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class MovingCodebook(nn.Module):
    def __init__(self, codes, dim, decay=0.95, eps=1e-5):
        super().__init__()
        self.codes, self.dim, self.decay, self.eps = codes, dim, decay, eps
        start = torch.randn(codes, dim)
        self.register_buffer("codebook", start)
        self.register_buffer("mass", torch.ones(codes))
        self.register_buffer("total", start.clone())

    def assign(self, flat):
        return torch.cdist(flat, self.codebook).argmin(1)

    @torch.no_grad()
    def absorb(self, flat, index):
        onehot = F.one_hot(index, self.codes).to(flat.dtype)
        mass = onehot.sum(0)
        total = onehot.t() @ flat
        if dist.is_initialized():
            dist.all_reduce(mass)
            dist.all_reduce(total)
        self.mass.mul_(self.decay).add_(mass, alpha=1 - self.decay)
        self.total.mul_(self.decay).add_(total, alpha=1 - self.decay)
        n = self.mass.sum()
        smooth = (self.mass + self.eps) / (n + self.codes * self.eps) * n
        self.codebook.copy_(self.total / smooth.unsqueeze(1))

    def forward(self, z):
        flat = z.reshape(-1, self.dim)
        index = self.assign(flat.detach())
        picked = self.codebook[index].view_as(z)
        if self.training:
            self.absorb(flat.detach(), index)
        commit = F.mse_loss(z, picked.detach())
        return z + (picked - z).detach(), commit, index


def perplexity(index, codes):
    share = torch.bincount(index, minlength=codes).double()
    if dist.is_initialized():
        dist.all_reduce(share)
    share = share / share.sum()
    return torch.exp(-(share * (share + 1e-10).log()).sum()).item()
