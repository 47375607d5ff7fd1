import math
import random

import numpy as np
import torch
import torch.distributed as dist


def fix_random_seeds(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def cosine_scheduler(base, final, total, warmup=0, start=0.0):
    warm = np.linspace(start, base, warmup) if warmup else np.array([])
    it = np.arange(total - warmup)
    rest = final + 0.5 * (base - final) * (1 + np.cos(math.pi * it / max(len(it), 1)))
    return np.concatenate([warm, rest])


def get_params_groups(model):
    decay, plain = [], []
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        (plain if name.endswith(".bias") or p.ndim == 1 else decay).append(p)
    return [{"params": decay}, {"params": plain, "weight_decay": 0.0}]


class SmoothedValue:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, v, n=1):
        self.total += v * n
        self.count += n

    def global_avg(self):
        t = torch.tensor([self.total, self.count], dtype=torch.float64)
        dist.all_reduce(t)
        return (t[0] / t[1].clamp(min=1)).item()
