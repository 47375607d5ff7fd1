import time

import torch
import torch.distributed as dist


class TimeBudget:
    """Soft limit of a queue slot: stop early enough to write the final state."""

    def __init__(self, seconds, reserve=0.0):
        self.seconds = seconds
        self.reserve = reserve
        self.started = time.monotonic()

    @property
    def elapsed(self):
        return time.monotonic() - self.started

    def exhausted(self):
        over = torch.tensor(int(self.elapsed + self.reserve >= self.seconds))
        dist.all_reduce(over, op=dist.ReduceOp.MAX)
        return bool(over)
