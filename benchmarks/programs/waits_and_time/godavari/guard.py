import math

import torch
import torch.distributed as dist


class StepGuard:
    """A step counts only if the loss and the gradients are usable on every rank."""

    def __init__(self, limit):
        self.limit = limit
        self.mine = 0

    def everyone_fine(self, loss, flat):
        fine = math.isfinite(loss) and bool(torch.isfinite(flat).all()) and float(flat.norm()) < self.limit
        if not fine:
            self.mine += 1
        flag = torch.tensor([int(fine)])
        dist.all_reduce(flag, op=dist.ReduceOp.MIN)
        return bool(flag.item())
