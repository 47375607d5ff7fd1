import torch
import torch.nn.functional as F
from torch import nn


class Denoiser(nn.Module):
    def __init__(self, ch=24):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, ch), nn.SiLU(), nn.Linear(ch, ch * 2))
        self.inp = nn.Conv2d(1, ch, 3, padding=1)
        self.down = nn.Conv2d(ch, ch * 2, 3, stride=2, padding=1)
        self.mid = nn.Sequential(nn.GroupNorm(4, ch * 2), nn.SiLU(), nn.Conv2d(ch * 2, ch * 2, 3, padding=1))
        self.up = nn.ConvTranspose2d(ch * 2, ch, 4, 2, 1)
        self.out = nn.Sequential(nn.GroupNorm(4, ch * 2), nn.SiLU(), nn.Conv2d(ch * 2, 1, 3, padding=1))

    def forward(self, x, t):
        h0 = self.inp(x)
        h = self.down(h0) + self.time(t[:, None])[:, :, None, None]
        h = h + self.mid(h)
        return self.out(torch.cat([self.up(h), h0], 1))


class Diffusion(nn.Module):
    def __init__(self, net, timesteps=200):
        super().__init__()
        self.net = net
        self.timesteps = timesteps
        beta = torch.linspace(1e-4, 0.03, timesteps)
        self.register_buffer("abar", torch.cumprod(1 - beta, 0), persistent=False)

    def forward(self, x):
        t = torch.randint(0, self.timesteps, (len(x),))
        a = self.abar[t].view(-1, 1, 1, 1)
        noise = torch.randn_like(x)
        pred = self.net(a.sqrt() * x + (1 - a).sqrt() * noise, t.float() / self.timesteps)
        return F.mse_loss(pred, noise)

    @torch.no_grad()
    def ddim(self, noise, steps):
        x = noise
        grid = torch.linspace(self.timesteps - 1, 0, steps + 1).long()
        for now, nxt in zip(grid[:-1], grid[1:]):
            eps = self.net(x, torch.full((len(x),), now.item() / self.timesteps))
            a, b = self.abar[now], self.abar[nxt]
            x0 = ((x - (1 - a).sqrt() * eps) / a.sqrt()).clamp(-1, 1)
            x = b.sqrt() * x0 + (1 - b).sqrt() * eps
        return x
