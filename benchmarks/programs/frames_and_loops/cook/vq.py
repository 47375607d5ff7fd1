import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Quantizer(nn.Module):
    """Codebook kept as an exponential moving average of its assignments.

    Assignment counts and sums are taken over all processes. Codes that are
    hardly ever chosen are put back onto encoder outputs.
    """

    def __init__(self, codes: int, dim: int, decay: float = 0.9, beta: float = 0.25, threshold: float = 0.6):
        super().__init__()
        self.codes, self.dim = codes, dim
        self.decay, self.beta, self.threshold = decay, beta, threshold
        book = torch.randn(codes, dim) * 0.5
        self.register_buffer("book", book)
        self.register_buffer("usage", torch.ones(codes))
        self.register_buffer("sums", book.clone())

    def forward(self, z):
        d = z.pow(2).sum(1, keepdim=True) - 2 * z @ self.book.t() + self.book.pow(2).sum(1)
        idx = d.argmin(1)
        q = self.book[idx]
        if self.training:
            self.update(z.detach(), idx)
        commit = self.beta * F.mse_loss(z, q)
        return z + (q - z).detach(), idx, commit

    @torch.no_grad()
    def update(self, z, idx):
        hot = F.one_hot(idx, self.codes).to(z.dtype)
        stats = torch.cat([hot.sum(0, keepdim=True).t(), hot.t() @ z], dim=1)
        dist.all_reduce(stats)
        self.usage.lerp_(stats[:, 0], 1 - self.decay)
        self.sums.lerp_(stats[:, 1:], 1 - self.decay)
        n = self.usage.sum()
        smooth = (self.usage + 1e-5) / (n + self.codes * 1e-5) * n
        self.book.copy_(self.sums / smooth.unsqueeze(1))
        self.revive(z)

    @torch.no_grad()
    def revive(self, z):
        dead = torch.nonzero(self.usage < self.threshold).flatten()
        if dead.numel() == 0:
            return
        pick = torch.randint(0, z.size(0), (dead.numel(),))
        fresh = z[pick]
        self.book[dead] = fresh
        self.sums[dead] = fresh
        self.usage[dead] = 1.0
