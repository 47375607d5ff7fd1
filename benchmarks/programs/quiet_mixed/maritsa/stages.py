from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@dataclass
class Stage:
    name: str
    length: int
    items: int
    batch: int
    epochs: int
    lr: float
    corrupt: float
    seed: int


STAGES = [
    Stage("short", 6, 640, 32, 2, 3e-3, 0.00, 1),
    Stage("medium", 14, 640, 16, 2, 2e-3, 0.05, 2),
    Stage("long", 30, 320, 8, 1, 1e-3, 0.10, 3),
]


def stage_loader(stage, vocab=20):
    g = torch.Generator().manual_seed(stage.seed)
    ids = torch.randint(2, vocab, (stage.items, stage.length), generator=g)
    where = torch.randint(0, stage.length // 2, (stage.items,), generator=g)
    ids[torch.arange(stage.items), where] = 1
    target = ids[torch.arange(stage.items), where + 1]
    ds = TensorDataset(ids, target)
    sampler = DistributedSampler(ds, seed=stage.seed)
    return DataLoader(ds, batch_size=stage.batch, sampler=sampler, drop_last=True), sampler
