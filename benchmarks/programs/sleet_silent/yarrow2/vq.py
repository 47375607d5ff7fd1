import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class EmaCodebook(nn.Module):
    """Nearest neighbour quantiser, codes follow an exponential moving average of their members."""

    def __init__(self, n_codes, dim, decay=0.95, eps=1e-5):
        super().__init__()
        self.n_codes, self.decay, self.eps = n_codes, decay, eps
        embed = torch.randn(n_codes, dim) * 0.1
        self.register_buffer("embed", embed)
        self.register_buffer("cluster_size", torch.ones(n_codes))
        self.register_buffer("embed_sum", embed.clone())

    @torch.no_grad()
    def _refresh(self, flat, onehot):
        count = onehot.sum(0)
        total = onehot.t() @ flat
        dist.all_reduce(count)
        dist.all_reduce(total)
        self.cluster_size.mul_(self.decay).add_(count, alpha=1 - self.decay)
        self.embed_sum.mul_(self.decay).add_(total, alpha=1 - self.decay)
        n = self.cluster_size.sum()
        size = (self.cluster_size + self.eps) / (n + self.n_codes * self.eps) * n
        self.embed.copy_(self.embed_sum / size.unsqueeze(1))

    def forward(self, z):
        flat = z.permute(0, 2, 3, 1).reshape(-1, z.shape[1])
        dist2 = torch.cdist(flat, self.embed)
        idx = dist2.argmin(1)
        q = self.embed[idx].view(z.shape[0], z.shape[2], z.shape[3], -1).permute(0, 3, 1, 2)
        if self.training:
            self._refresh(flat.detach(), F.one_hot(idx, self.n_codes).float())
        commit = F.mse_loss(z, q.detach())
        return z + (q - z).detach(), commit, idx


class VQVAE(nn.Module):
    def __init__(self, ch=24, dim=12, n_codes=48):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(3, ch, 4, 2, 1), nn.ReLU(), nn.Conv2d(ch, ch, 4, 2, 1), nn.ReLU(), nn.Conv2d(ch, dim, 1))
        self.codebook = EmaCodebook(n_codes, dim)
        self.dec = nn.Sequential(nn.ConvTranspose2d(dim, ch, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(ch, 3, 4, 2, 1))

    def forward(self, x):
        q, commit, idx = self.codebook(self.enc(x))
        return self.dec(q), commit, idx
