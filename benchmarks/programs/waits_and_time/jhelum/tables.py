import torch


def make_split(rows, features, seed, rank, world):
    """Regression table; each rank reads the rows of its own region."""
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(features, 1, generator=g) / features**0.5
    x = torch.randn(rows, features, generator=g)
    region = torch.arange(rows) % world
    tilt = torch.randn(world, features, 1, generator=g) / features**0.5
    y = torch.sin(2 * (x @ w)) + 0.35 * torch.stack([x[i] @ tilt[region[i]] for i in range(rows)])
    y = y + 0.3 * torch.randn(rows, 1, generator=g)
    held = (torch.arange(rows) // world) % 5 == 4
    mine = region == rank
    return (x[mine & ~held], y[mine & ~held]), (x[mine & held], y[mine & held])
