import collections

import torch
import torch.distributed as dist


class WindowMean:
    """Mean of the last ``size`` values, here and over the whole job."""

    def __init__(self, size, group=None):
        self.items = collections.deque(maxlen=size)
        self.group = group

    def push(self, x):
        self.items.append(float(x))

    @property
    def here(self):
        return sum(self.items) / max(len(self.items), 1)

    @property
    def value(self):
        pair = torch.tensor([sum(self.items), len(self.items)], dtype=torch.float64)
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(pair, group=self.group)
        return (pair[0] / pair[1].clamp(min=1)).item()

    def __format__(self, spec):
        return format(self.value, spec or ".4f")
