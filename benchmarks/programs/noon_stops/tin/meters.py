from collections import defaultdict

import torch
import torch.distributed as dist


class SmoothedValue:
    def __init__(self):
        self.total = 0.0
        self.count = 0

    def update(self, value, n=1):
        self.total += value * n
        self.count += n

    def synchronize_between_processes(self):
        t = torch.tensor([self.count, self.total], dtype=torch.float64)
        dist.barrier()
        dist.all_reduce(t)
        self.count, self.total = int(t[0].item()), t[1].item()

    @property
    def global_avg(self):
        return self.total / max(self.count, 1)


class MetricLogger:
    def __init__(self):
        self.meters = defaultdict(SmoothedValue)

    def update(self, **values):
        for k, v in values.items():
            self.meters[k].update(float(v))

    def synchronize_between_processes(self):
        for name in sorted(self.meters):
            self.meters[name].synchronize_between_processes()

    def __str__(self):
        return "  ".join(f"{k}: {m.global_avg:.4f}" for k, m in sorted(self.meters.items()))
