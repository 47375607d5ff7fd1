"""A thin layer over DDP that hides gradient accumulation from the trainer."""
import contextlib

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class GradientState:
    def __init__(self):
        self.sync = True


class AccelOptimizer:
    def __init__(self, optimizer, state):
        self.optimizer, self.state = optimizer, state

    def step(self):
        if self.state.sync:
            self.optimizer.step()

    def zero_grad(self):
        if self.state.sync:
            self.optimizer.zero_grad()

    @property
    def param_groups(self):
        return self.optimizer.param_groups


class Accelerator:
    def __init__(self, gradient_accumulation_steps=1):
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.state = GradientState()
        self._count = 0
        self.is_main = dist.get_rank() == 0

    def prepare(self, model, optimizer):
        return DDP(model), AccelOptimizer(optimizer, self.state)

    @contextlib.contextmanager
    def accumulate(self, model):
        self._count += 1
        self.state.sync = self._count % self.gradient_accumulation_steps == 0
        with contextlib.nullcontext() if self.state.sync else model.no_sync():
            yield

    def backward(self, loss):
        (loss / self.gradient_accumulation_steps).backward()
