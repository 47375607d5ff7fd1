import torch
from torch.utils.data import DataLoader, TensorDataset


def shard(student, n_students, total=210, dim=16):
    g = torch.Generator().manual_seed(21)
    x = torch.randn(total, dim, generator=g)
    bounds = torch.linspace(0, total, n_students + 1).round().long().tolist()
    if n_students == 2:
        bounds = [0, 96, total]  # keep the two sources apart
    return TensorDataset(x[bounds[student]:bounds[student + 1]])


def make_loader(student, n_students, batch_size, drop_last):
    return DataLoader(shard(student, n_students), batch_size=batch_size, drop_last=drop_last)
