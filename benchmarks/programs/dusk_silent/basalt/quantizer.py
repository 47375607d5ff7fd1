import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def sample_vectors(samples, num):
    """Draw `num` rows of `samples`, with replacement only if there are too few."""
    n = samples.shape[0]
    if n >= num:
        idx = torch.randperm(n)[:num]
    else:
        idx = torch.randint(0, n, (num,))
    return samples[idx]


class EuclideanCodebook(nn.Module):
    """Codebook with exponential moving average updates (van den Oord et al., 2017, appendix A)."""

    def __init__(self, dim, codebook_size, decay=0.95, eps=1e-5, threshold_dead=1.0):
        super().__init__()
        self.decay, self.eps, self.threshold_dead = decay, eps, threshold_dead
        self.codebook_size = codebook_size
        embed = torch.randn(codebook_size, dim)
        self.register_buffer("embed", embed)
        self.register_buffer("embed_avg", embed.clone())
        self.register_buffer("cluster_size", torch.full((codebook_size,), 2.0))

    @torch.no_grad()
    def _expire_codes(self, flat):
        dead = self.cluster_size < self.threshold_dead
        if not dead.any():
            return
        samples = sample_vectors(flat, int(dead.sum()))
        if dist.is_initialized():
            dist.broadcast(samples, src=0)
        self.embed[dead] = samples
        self.embed_avg[dead] = samples * 2.0
        self.cluster_size[dead] = 2.0

    @torch.no_grad()
    def _ema_update(self, flat, codes):
        onehot = F.one_hot(codes, self.codebook_size).to(flat.dtype)
        counts = onehot.sum(0)
        sums = onehot.t() @ flat
        if dist.is_initialized():
            # statistics of the whole global batch
            dist.all_reduce(counts)
            dist.all_reduce(sums)
        self.cluster_size.mul_(self.decay).add_(counts, alpha=1 - self.decay)
        self.embed_avg.mul_(self.decay).add_(sums, alpha=1 - self.decay)
        total = self.cluster_size.sum()
        smoothed = (self.cluster_size + self.eps) / (total + self.codebook_size * self.eps) * total
        self.embed.copy_(self.embed_avg / smoothed.unsqueeze(1))

    def forward(self, x):
        flat = x.detach().reshape(-1, x.shape[-1])
        codes = torch.cdist(flat, self.embed).argmin(1)
        quantized = F.embedding(codes, self.embed).view_as(x)
        if self.training:
            self._ema_update(flat, codes)
            self._expire_codes(flat)
        commit = F.mse_loss(x, quantized.detach())
        quantized = x + (quantized - x).detach()
        return quantized, codes.view(x.shape[:-1]), commit
