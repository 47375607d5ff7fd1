"""Vector quantizer whose codebook is moved by EMA statistics of all the processes."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class EMAQuantizer(nn.Module):
    def __init__(self, n_codes, dim, decay=0.95, beta=0.25, dead=0.3, eps=1e-5):
        super().__init__()
        self.n, self.decay, self.beta, self.dead, self.eps = n_codes, decay, beta, dead, eps
        self.register_buffer("codebook", torch.randn(n_codes, dim))
        self.register_buffer("usage", torch.ones(n_codes))
        self.register_buffer("sums", self.codebook.clone())
        self.register_buffer("ready", torch.zeros(1, dtype=torch.bool))

    @torch.no_grad()
    def _init(self, flat):
        """Data-dependent start from the vectors of rank 0."""
        pick = flat[torch.randint(len(flat), (self.n,))] + 0.01 * torch.randn(self.n, flat.shape[1])
        dist.broadcast(pick, src=0)
        self.codebook.copy_(pick)
        self.sums.copy_(pick)
        self.usage.fill_(1.0)
        self.ready.fill_(True)

    @torch.no_grad()
    def _update(self, flat, codes):
        onehot = F.one_hot(codes, self.n).type_as(flat)
        stats = torch.cat([onehot.sum(0)[:, None], onehot.T @ flat], 1)
        dist.all_reduce(stats)
        self.usage.lerp_(stats[:, 0], 1 - self.decay)
        self.sums.lerp_(stats[:, 1:], 1 - self.decay)
        total = self.usage.sum()
        smooth = (self.usage + self.eps) / (total + self.n * self.eps) * total
        self.codebook.copy_(self.sums / smooth[:, None])
        dead = (self.usage < self.dead).nonzero().flatten()
        if len(dead):                     # usage is the same everywhere, hence all the processes get here together
            fresh = flat[torch.randint(len(flat), (len(dead),))].contiguous()
            dist.broadcast(fresh, src=0)
            self.codebook[dead] = fresh
            self.sums[dead] = fresh
            self.usage[dead] = 1.0
        return len(dead)

    def forward(self, z):
        b, d, h, w = z.shape
        flat = z.permute(0, 2, 3, 1).reshape(-1, d)
        if self.training and not self.ready:
            self._init(flat.detach())
        codes = torch.cdist(flat, self.codebook).argmin(1)
        q = self.codebook[codes]
        commit = self.beta * F.mse_loss(flat, q)
        out = (flat + (q - flat).detach()).view(b, h, w, d).permute(0, 3, 1, 2)
        revived = self._update(flat.detach(), codes) if self.training else 0
        return out, commit, codes, revived
