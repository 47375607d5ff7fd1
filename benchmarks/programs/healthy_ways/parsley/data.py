import torch
import torch.nn.functional as F
from torch.utils.data import Dataset


class Textures(Dataset):
    """Sixteen-pixel textures: stripes of four orientations with random phase and frequency."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 4, (n,), generator=g)
        yy, xx = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
        angle = self.y * torch.pi / 4 + 0.15 * torch.randn(n, generator=g)
        freq = 0.6 + 0.5 * torch.rand(n, generator=g)
        phase = torch.rand(n, generator=g) * 6.28
        wave = (angle.cos()[:, None, None] * xx + angle.sin()[:, None, None] * yy) * freq[:, None, None]
        self.noise = torch.rand(n, generator=g)
        self.x = torch.sin(wave + phase[:, None, None]) + (0.4 + self.noise)[:, None, None] * torch.randn(
            n, 16, 16, generator=g)
        self.size = 16

    def difficulty(self):
        return self.noise

    def resize(self, size):
        self.size = size

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        x = self.x[i][None]
        if self.size != 16:
            x = F.interpolate(x[None], size=self.size, mode="bilinear", antialias=True, align_corners=False)[0]
        return x, self.y[i]
