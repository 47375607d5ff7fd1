import torch
import torch.nn as nn
import torch.nn.functional as F


class Res(nn.Module):
    def __init__(self, i, o, emb):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(i, o, 3, padding=1), nn.Conv2d(o, o, 3, padding=1)
        self.n1, self.n2 = nn.GroupNorm(4, o), nn.GroupNorm(4, o)
        self.e = nn.Linear(emb, o)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, e):
        h = F.silu(self.n1(self.c1(x))) + self.e(e)[:, :, None, None]
        return F.silu(self.n2(self.c2(h))) + self.skip(x)


class Mid(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.up = nn.Conv2d(c, 24 * c, 1)
        self.down = nn.Conv2d(24 * c, c, 1)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.up(x))


class MiniUNet(nn.Module):
    def __init__(self, ch, steps, emb=32):
        super().__init__()
        self.t = nn.Sequential(nn.Embedding(steps, emb), nn.Linear(emb, emb), nn.SiLU())
        self.inp = Res(1, ch, emb)
        self.down = Res(ch, ch, emb)
        self.mid = Mid(ch)
        self.up = Res(2 * ch, ch, emb)
        self.out = nn.Conv2d(ch, 1, 3, padding=1)

    def forward(self, x, t):
        e = self.t(t)
        a = self.inp(x, e)
        b = self.down(F.avg_pool2d(a, 2), e)
        b = b + self.mid.down(self.mid(b))
        c = self.up(torch.cat([F.interpolate(b, scale_factor=2), a], 1), e)
        return self.out(c)
