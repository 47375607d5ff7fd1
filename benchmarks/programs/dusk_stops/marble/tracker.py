from collections import defaultdict

import torch.distributed as dist


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
