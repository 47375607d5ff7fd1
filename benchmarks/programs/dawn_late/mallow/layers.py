import torch
from torch import nn


class ChannelNorm(nn.Module):
    """Batch normalisation for (batch, time, channel) written out. Training uses the statistics of the
    rows at hand; the running ones are only read in eval()."""

    def __init__(self, channels, keep=0.9):
        super().__init__()
        self.keep = keep
        self.gain, self.shift = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("run_mean", torch.zeros(channels))
        self.register_buffer("run_var", torch.ones(channels))
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            mean, var = x.mean((0, 1)), x.var((0, 1), unbiased=False)
            with torch.no_grad():
                self.updates += 1
                self.run_mean.mul_(self.keep).add_(mean, alpha=1 - self.keep)
                self.run_var.mul_(self.keep).add_(var, alpha=1 - self.keep)
        else:
            mean, var = self.run_mean, self.run_var
        return (x - mean) * torch.rsqrt(var + 1e-5) * self.gain + self.shift


class LocalAttention(nn.Module):
    """Attention within a window; the distance mask is made once per length and kept in a buffer."""

    def __init__(self, dim, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.register_buffer("mask", torch.zeros(1, 1), persistent=False)

    def forward(self, x):
        b, t, d = x.shape
        if self.mask.shape[0] != t:
            pos = torch.arange(t)
            far = (pos[:, None] - pos[None, :]).abs() > self.window
            self.mask = torch.zeros(t, t).masked_fill(far, float("-inf"))
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weight = (q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5 + self.mask).softmax(-1)
        return self.out((weight @ v).transpose(1, 2).reshape(b, t, d))
