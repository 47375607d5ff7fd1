import torch

SITES = {"north": 200, "harbour": 280, "airport": 240, "valley": 220, "ridge": 300, "plain": 260}


def load_site(name, rows):
    seed = sum(ord(c) for c in name)
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 12, generator=g) + 0.2 * torch.randn(12, generator=g)
    w = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
    y = torch.tanh(x) @ w / 3 + 0.1 * torch.randn(rows, 3, generator=g)
    return x, y


def partition(rank, world):
    names = sorted(SITES)
    parts = [load_site(n, SITES[n]) for n in names]
    x, y = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
    return x[rank::world], y[rank::world]


def held_out(rank, world):
    x, y = load_site("coast", 300)
    return x[rank::world], y[rank::world]
