import contextlib

import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from schedule import StepPlan


class Trainer:
    def __init__(self, model, loss_fn, accum=4, lr=2e-3, clip=1.0):
        self.model = DDP(model)
        self.loss_fn, self.accum, self.clip = loss_fn, accum, clip
        self.plan = StepPlan(accum)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.updates = 0

    def _context(self, i):
        return contextlib.nullcontext() if self.plan.syncs(i) else self.model.no_sync()

    def epoch(self, loader):
        total = 0.0
        self.opt.zero_grad()
        for i, (x, y) in enumerate(loader, start=1):
            with self._context(i):
                loss = self.loss_fn(self.model(x), y) / self.accum
                loss.backward()
            total += loss.item()
            if self.plan.steps(i):
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
                self.opt.step()
                self.opt.zero_grad()
                self.updates += 1
        return total * self.accum / i
