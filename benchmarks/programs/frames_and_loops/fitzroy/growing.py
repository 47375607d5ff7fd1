import torch
import torch.nn as nn
import torch.nn.functional as F


class GrowingAutoencoder(nn.Module):
    """Starts at 4x4 and gains one level (twice the resolution) per stage."""

    def __init__(self, width=12, latent=10):
        super().__init__()
        self.width, self.latent = width, latent
        self.enc_in = nn.ModuleList([nn.Conv2d(1, width, 1)])
        self.enc = nn.ModuleList()
        self.mid = nn.Sequential(nn.Flatten(), nn.Linear(width * 16, latent), nn.Tanh(), nn.Linear(latent, width * 16))
        self.dec = nn.ModuleList()
        self.dec_out = nn.ModuleList([nn.Conv2d(width, 1, 1)])
        self.alpha = 1.0

    @property
    def level(self):
        return len(self.enc)

    @property
    def resolution(self):
        return 4 * 2 ** self.level

    def grow(self):
        w = self.width
        self.enc.append(nn.Sequential(nn.Conv2d(w, w, 3, padding=1), nn.GroupNorm(3, w), nn.SiLU()))
        self.dec.append(nn.Sequential(nn.Conv2d(w, w, 3, padding=1), nn.GroupNorm(3, w), nn.SiLU()))
        self.enc_in.append(nn.Conv2d(1, w, 1))
        self.dec_out.append(nn.Conv2d(w, 1, 1))
        self.alpha = 0.0

    def active_parameters(self):
        n = self.level
        used = [self.enc_in[n], self.dec_out[n], self.enc, self.dec, self.mid]
        if n > 0:
            used += [self.enc_in[n - 1], self.dec_out[n - 1]]
        return [p for m in used for p in m.parameters()]

    def freeze_inactive(self):
        active = set(map(id, self.active_parameters()))
        for p in self.parameters():
            p.requires_grad_(id(p) in active)

    def forward(self, x):
        n = self.level
        h = self.enc_in[n](x)
        if n > 0:
            h = F.avg_pool2d(self.enc[n - 1](h), 2)
            skip = self.enc_in[n - 1](F.avg_pool2d(x, 2))
            h = self.alpha * h + (1 - self.alpha) * skip
            for i in range(n - 2, -1, -1):
                h = F.avg_pool2d(self.enc[i](h), 2)
        h = self.mid(h).view(-1, self.width, 4, 4)
        for i in range(n):
            last = h
            h = self.dec[i](F.interpolate(h, scale_factor=2))
        out = self.dec_out[n](h)
        if n > 0:
            coarse = F.interpolate(self.dec_out[n - 1](last), scale_factor=2)
            out = self.alpha * out + (1 - self.alpha) * coarse
        return out
