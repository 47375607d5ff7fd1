import torch
from torch import nn


class ResBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.f = nn.Sequential(nn.GroupNorm(4, c), nn.ReLU(), nn.Conv2d(c, c, 3, padding=1), nn.GroupNorm(4, c), nn.ReLU(), nn.Conv2d(c, c, 3, padding=1))

    def forward(self, x):
        return x + self.f(x)


class Trunk(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.stem = nn.Conv2d(1, c, 3, stride=2, padding=1)
        self.stages = nn.Sequential(ResBlock(c), nn.AvgPool2d(2), ResBlock(c))
        self.width = c

    def forward(self, x):
        return self.stages(self.stem(x)).mean((2, 3))


class Classifier(nn.Module):
    """Trunk plus a head named after its task."""

    def __init__(self, task, n_out):
        super().__init__()
        self.trunk = Trunk()
        self.heads = nn.ModuleDict({task: nn.Linear(self.trunk.width, n_out)})
        self.task = task

    def forward(self, x):
        return self.heads[self.task](self.trunk(x))


def shapes(n, seed, size=20):
    g = torch.Generator().manual_seed(seed)
    x = 0.3 * torch.randn(n, 1, size, size, generator=g)
    y = torch.randint(0, 4, (n,), generator=g)
    for i in range(n):
        r, c = torch.randint(3, size - 9, (2,), generator=g).tolist()
        if y[i] == 0:
            x[i, 0, r:r + 7, c:c + 7] += 1
        elif y[i] == 1:
            x[i, 0, r:r + 7, c] += 1.5
        elif y[i] == 2:
            x[i, 0, r, c:c + 7] += 1.5
        else:
            k = torch.arange(7)
            x[i, 0, r + k, c + k] += 1.5
    return x, y


def rotations(x, seed):
    g = torch.Generator().manual_seed(seed)
    k = torch.randint(0, 4, (len(x),), generator=g)
    tilt = torch.linspace(-1, 1, x.shape[-1]).view(1, 1, 1, -1)
    turned = torch.stack([torch.rot90(img + 0.4 * tilt[0], int(n), (1, 2)) for img, n in zip(x, k)])
    return turned, k
