from dataclasses import dataclass

import torch
from torch.utils.data import DistributedSampler, TensorDataset

TASKS = {"depth": (480, [0, 1]), "slope": (240, [2])}


@dataclass
class Assignment:
    index: int
    members: int
    batch: int
    dataset: TensorDataset
    sampler: DistributedSampler


def rows(index, n):
    g = torch.Generator().manual_seed(70 + index)
    x = torch.randn(n, 12, generator=g)
    return TensorDataset(x, x[:, index].abs() - x[:, index + 3])


def assign(rank):
    for index, (n, ranks) in enumerate(TASKS.values()):
        if rank in ranks:
            ds = rows(index, n)
            sampler = DistributedSampler(ds, num_replicas=len(ranks), rank=ranks.index(rank), seed=index)
            return Assignment(index, len(ranks), 20, ds, sampler)
    raise ValueError(rank)
