import torch
import torch.nn as nn
import torch.nn.functional as F


class Generator(nn.Module):
    def __init__(self, z_dim=16, width=96, out_dim=2, classes=4):
        super().__init__()
        self.label = nn.Embedding(classes, 8)
        self.net = nn.Sequential(nn.Linear(z_dim + 8, width), nn.LayerNorm(width), nn.LeakyReLU(0.2),
                                 nn.Linear(width, width), nn.LayerNorm(width), nn.LeakyReLU(0.2),
                                 nn.Linear(width, out_dim))
        self.z_dim = z_dim

    def forward(self, z, c):
        return self.net(torch.cat([z, self.label(c)], dim=1))


class Critic(nn.Module):
    def __init__(self, in_dim=2, width=96, classes=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(in_dim, width), nn.LeakyReLU(0.2),
                                  nn.Linear(width, width), nn.LeakyReLU(0.2))
        self.out = nn.Linear(width, 1)
        self.label = nn.Embedding(classes, width)

    def forward(self, x, c):
        h = self.body(x)
        return self.out(h).squeeze(1) + (h * self.label(c)).sum(1)


def hinge_critic(real, fake):
    return F.relu(1 - real).mean() + F.relu(1 + fake).mean()


def hinge_generator(fake):
    return -fake.mean()


class WeightAverage:
    """Slow copy of a network used for sampling."""

    def __init__(self, module, decay):
        self.decay = decay
        self.shadow = {k: v.detach().clone() for k, v in module.state_dict().items()}

    @torch.no_grad()
    def update(self, module):
        for k, v in module.state_dict().items():
            self.shadow[k].mul_(self.decay).add_(v, alpha=1 - self.decay)
