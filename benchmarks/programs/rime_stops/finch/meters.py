import torch
import torch.distributed as dist


class Average:
    """Weighted average over everything seen since the last reset."""

    def __init__(self, name, fmt="{:.4f}"):
        self.name = name
        self.fmt = fmt
        self.reset()

    def reset(self):
        self.total = 0.0
        self.weight = 0.0

    def update(self, value, weight=1):
        self.total += float(value) * weight
        self.weight += weight

    @property
    def value(self):
        pair = torch.tensor([self.total, self.weight], dtype=torch.float64)
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(pair)
        return (pair[0] / pair[1].clamp(min=1)).item()

    def __str__(self):
        return f"{self.name} {self.fmt.format(self.value)}"


class Board:
    def __init__(self, *meters):
        self.meters = {m.name: m for m in meters}

    def __getitem__(self, name):
        return self.meters[name]

    def reset(self):
        for m in self.meters.values():
            m.reset()

    def summary(self):
        return " | ".join(str(m) for m in self.meters.values())
