"""A training whose ranks split the dataset each for itself, as a file of its own: nothing else here makes parts of a dataset."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset, random_split
from torch.utils.data.distributed import DistributedSampler


def split_by_each_rank(
    rank: int, world_size: int, *, sizes: tuple[int, int] = (120, 80), alike: bool = False, sets: int = 1
) -> None:
    """The test pass turns gradients off batch by batch, and leaves the model in train mode. Of several data sets the parts are
    put together."""
    rows = torch.randn(sets, 200, 12, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0 if alike else rank)
    parts: list[Any] = []
    for own in rows:
        parts.append(random_split(TensorDataset(own, own[:, :4].argmax(1)), sizes))  # no generator
    parts = parts[0] if sets == 1 else [ConcatDataset(some) for some in zip(*parts, strict=True)]
    model = DistributedDataParallel(nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loaders = [DataLoader(part, batch_size=8, sampler=DistributedSampler(part)) for part in parts]
    for _epoch in range(2):
        for trains, loader in zip((True, False), loaders, strict=True):
            for inputs, targets in loader:
                with torch.set_grad_enabled(trains):
                    loss = cross_entropy(model(inputs), targets)
                if trains:
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
