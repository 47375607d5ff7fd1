from collections import defaultdict

import torch
import torch.distributed as dist


class MetricWindow:
    """Collects per-sample values between two log lines and averages them over all workers."""

    def __init__(self, names):
        self.names = tuple(names)
        self.values = defaultdict(list)

    def add(self, name, value):
        if name not in self.names:
            raise KeyError(name)
        self.values[name].append(value)

    def flush(self):
        report = {}
        for name in sorted(self.values):
            vals = torch.cat(self.values[name])
            mine = torch.tensor([vals.sum().item(), float(vals.numel())])
            gathered = [torch.zeros(2) for _ in range(dist.get_world_size())]
            dist.all_gather(gathered, mine)
            total, count = torch.stack(gathered).sum(0).tolist()
            report[name] = total / max(count, 1.0)
        self.values.clear()
        return report
