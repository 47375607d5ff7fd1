import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_clicks(cfg):
    g = torch.Generator().manual_seed(cfg.seed)
    pu = torch.randn(cfg.users, 4, generator=g)
    pi = torch.randn(cfg.items, 4, generator=g)
    pick = torch.randperm(cfg.users * cfg.items, generator=g)[:cfg.interactions]
    u, i = pick // cfg.items, pick % cfg.items
    y = ((pu[u] * pi[i]).sum(-1) > 0).float()
    rows = torch.stack([u, i], 1)
    cut = int(cfg.interactions * 0.9)
    return TensorDataset(rows[:cut], y[:cut]), TensorDataset(rows[cut:], y[cut:])


def loaders(cfg):
    train, test = make_clicks(cfg)
    sampler = DistributedSampler(train, seed=cfg.seed, drop_last=True)
    return DataLoader(train, cfg.batch, sampler=sampler), sampler, DataLoader(test, 100)
