import torch
from torch.utils.data import DataLoader, TensorDataset


def blobs(n, dim, classes, seed):
    g = torch.Generator().manual_seed(seed)
    centers = torch.randn(classes, dim, generator=g) * 1.5
    y = torch.randint(0, classes, (n,), generator=g)
    return TensorDataset(centers[y] + torch.randn(n, dim, generator=g), y)


def loader(cfg):
    g = torch.Generator().manual_seed(cfg.seed)
    ds = blobs(cfg.items, cfg.dim, cfg.classes, cfg.seed)
    return DataLoader(ds, batch_size=cfg.batch, shuffle=True, generator=g)
