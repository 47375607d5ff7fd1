import math

from torch.optim.lr_scheduler import LambdaLR


def factor(step, warmup, total, floor=0.05):
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))


def build(optimizer, warmup, total, start=0):
    """A schedule that begins `start` steps into the curve."""
    return LambdaLR(optimizer, lambda s: factor(s + start, warmup, total))
