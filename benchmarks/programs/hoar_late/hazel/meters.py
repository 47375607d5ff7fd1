import torch.distributed as dist


class AverageMeter:
    def __init__(self, name, fmt=".4f"):
        self.name = name
        self.fmt = fmt
        self.reset()

    def reset(self):
        self.sum = 0.0
        self.count = 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    def totals(self):
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, (self.sum, self.count))
        return sum(p[0] for p in parts), sum(p[1] for p in parts)

    def __str__(self):
        total, count = self.totals()
        return f"{self.name} {total / max(count, 1):{self.fmt}}"


class LocalMeter(AverageMeter):
    def __str__(self):
        return f"{self.name} {self.sum / max(self.count, 1):{self.fmt}}"
