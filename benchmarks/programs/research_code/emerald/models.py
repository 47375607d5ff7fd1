import torch
import torch.nn as nn
import torch.nn.functional as F


class Modulated(nn.Module):
    def __init__(self, cin, cout, w_dim):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1)
        self.style = nn.Linear(w_dim, cin)

    def forward(self, x, w):
        s = self.style(w) + 1
        return F.leaky_relu(self.conv(x * s[:, :, None, None]), 0.2)


class Generator(nn.Module):
    def __init__(self, z_dim, classes, w_dim=32, ch=24):
        super().__init__()
        self.map = nn.Sequential(nn.Linear(z_dim, w_dim), nn.LeakyReLU(0.2), nn.Linear(w_dim, w_dim))
        self.label = nn.Embedding(classes, w_dim)
        self.const = nn.Parameter(torch.randn(1, ch, 4, 4))
        self.b1 = Modulated(ch, ch, w_dim)
        self.b2 = Modulated(ch, ch // 2, w_dim)
        self.rgb = nn.Conv2d(ch // 2, 1, 1)

    def mapping(self, z):
        return self.map(F.normalize(z, dim=1) * z.shape[1] ** 0.5)

    def synthesize(self, w1, w2, mix, y):
        e = self.label(y)
        wb = torch.where(mix, w2, w1) + e
        x = self.const.expand(len(y), -1, -1, -1)
        x = self.b1(x, w1 + e)
        x = F.interpolate(x, scale_factor=3, mode="nearest")
        return torch.tanh(self.rgb(self.b2(x, wb)))

    def forward(self, z, y, z_mix=None, mix=None):
        w = self.mapping(z)
        if z_mix is None:
            return self.synthesize(w, w, torch.zeros(len(z), 1, dtype=torch.bool), y)
        return self.synthesize(w, self.mapping(z_mix), mix, y)


class Critic(nn.Module):
    def __init__(self, classes, ch=16):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, ch, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(ch, 2 * ch, 3, 2, 1),
                                 nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(2 * ch * 9, 32), nn.LeakyReLU(0.2))
        self.out = nn.Linear(32, 1)
        self.emb = nn.Embedding(classes, 32)

    def forward(self, x, y):
        h = self.net(x)
        return self.out(h).squeeze(1) + (h * self.emb(y)).sum(1) / 32 ** 0.5
