"""Running averages of a training job."""
import torch
import torch.distributed as dist


class Meter:
    """Keeps local sums; the mean over all processes is worked out when somebody wants to see it."""

    def __init__(self, name, fmt="{:.4f}"):
        self.name, self.fmt = name, fmt
        self.clear()

    def clear(self):
        self.total, self.count = 0.0, 0

    def add(self, value, n=1):
        self.total += float(value) * n
        self.count += n

    def mean(self):
        mine = torch.tensor([self.total, self.count], dtype=torch.float64)
        rows = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, mine)
        total, count = torch.stack(rows).sum(0).tolist()
        return total / max(count, 1)

    def __str__(self):
        return f"{self.name}=" + self.fmt.format(self.mean())


class Board:
    def __init__(self, *names):
        self.meters = {n: Meter(n) for n in names}

    def __getitem__(self, name):
        return self.meters[name]

    def clear(self):
        for m in self.meters.values():
            m.clear()

    def __str__(self):
        return "  ".join(str(m) for m in self.meters.values())
