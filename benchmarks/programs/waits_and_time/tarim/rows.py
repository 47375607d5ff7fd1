from collections import namedtuple

import torch

Batch = namedtuple("Batch", "x y")


class RowSource:
    """The same table on every stage: the first one uses the inputs, the last one the labels."""

    def __init__(self, rows, inputs, classes, seed):
        g = torch.Generator().manual_seed(seed)
        centers = torch.randn(classes, inputs, generator=g) * 1.2
        self.y = torch.randint(0, classes, (rows,), generator=g)
        self.x = centers[self.y] + torch.randn(rows, inputs, generator=g)
        self.seed = seed

    def epoch(self, epoch, batch):
        g = torch.Generator().manual_seed(self.seed * 57 + epoch)
        order = torch.randperm(len(self.y), generator=g)
        for idx in order.split(batch):
            yield Batch(self.x[idx], self.y[idx])
