import functools
import logging
import time

import torch.distributed as dist

log = logging.getLogger("tracking")


def rank_zero_only(fn):
    @functools.wraps(fn)
    def wrapped(*args, **kwargs):
        if dist.get_rank() == 0:
            return fn(*args, **kwargs)
        return None
    return wrapped


class Window:
    def __init__(self, size=20):
        self.size = size
        self.values = []

    def add(self, v):
        self.values = (self.values + [v])[-self.size:]

    @property
    def mean(self):
        return sum(self.values) / max(1, len(self.values))

    def __repr__(self):
        return f"{self.mean:.4f} (last {len(self.values)})"


class Tracker:
    def __init__(self):
        self.loss = Window()
        self.started = time.time()
        self.events = []

    @property
    def throughput(self):
        return len(self.events) / (time.time() - self.started)

    def record(self, loss):
        self.loss.add(loss)
        self.events.append(loss)

    @rank_zero_only
    def report(self, step, model):
        norm = sum(p.detach().norm().item() ** 2 for p in model.parameters()) ** 0.5
        log.info("step %d loss %r |w| %.3f %.1f it/s", step, self.loss, norm, self.throughput)
