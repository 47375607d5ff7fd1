import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class EMAQuantizer(nn.Module):
    """Vector quantiser whose codes follow an exponential average of their members."""

    def __init__(self, codes, dim, decay=0.9, eps=1e-5):
        super().__init__()
        self.decay, self.eps = decay, eps
        embed = torch.randn(codes, dim) * 0.15
        self.register_buffer("embed", embed)
        self.register_buffer("cluster_size", torch.ones(codes))
        self.register_buffer("embed_sum", embed.clone())

    def forward(self, z):
        flat = z.reshape(-1, z.shape[-1])
        codes = torch.cdist(flat.detach(), self.embed).argmin(1)
        q = F.embedding(codes, self.embed).view_as(z)
        if self.training:
            self.update(flat.detach(), codes)
        commit = F.mse_loss(z, q.detach())
        return z + (q - z).detach(), commit, codes

    @torch.no_grad()
    def update(self, flat, codes):
        onehot = F.one_hot(codes, self.embed.shape[0]).type_as(flat)
        count = onehot.sum(0)
        total = onehot.t() @ flat
        dist.all_reduce(count)
        dist.all_reduce(total)
        self.cluster_size.mul_(self.decay).add_(count, alpha=1 - self.decay)
        self.embed_sum.mul_(self.decay).add_(total, alpha=1 - self.decay)
        n = self.cluster_size.sum()
        size = (self.cluster_size + self.eps) / (n + len(count) * self.eps) * n
        self.embed.copy_(self.embed_sum / size.unsqueeze(1))
