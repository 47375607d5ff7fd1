from collections import defaultdict

import torch
import torch.distributed as dist


def in_step(loader):
    """Yields as long as every rank still has a batch."""
    it = iter(loader)
    while True:
        item = next(it, None)
        more = torch.tensor([int(item is not None)])
        dist.all_reduce(more, op=dist.ReduceOp.MIN)
        if not more.item():
            return
        yield item


class MetricsTracker:
    """Sums of named quantities, added up over the ranks on demand (as in icefall)."""

    def __init__(self):
        self.sums = defaultdict(float)

    def update(self, **values):
        for k, v in values.items():
            self.sums[k] += v

    def reduce(self):
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, dict(self.sums))
        return {k: sum(p.get(k, 0.0) for p in parts) for k in self.sums}
