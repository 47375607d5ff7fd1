import copy
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


class Average:
    """Rank 0's smoothed copy of the weights."""

    def __init__(self, model, decay):
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def after_step(self, step, model, loss):
        for own, new in zip(self.model.parameters(), model.parameters()):
            own.lerp_(new, 1 - self.decay)
        if step % 10 == 0:
            size = sum(p.pow(2).sum() for p in self.model.parameters()).sqrt()
            print(f"step {step} loss {loss:.4f} size {size:.4f}", flush=True)


class Best:
    """Rank 0 keeps the best weights seen and goes back to them after a bad stretch."""

    def __init__(self, patience):
        self.patience = patience
        self.value = float("inf")
        self.state = None
        self.bad = 0

    def after_step(self, step, model, loss):
        if dist.get_rank() == 0:
            self.judge(model, loss)
        for p in model.parameters():
            dist.broadcast(p.data, src=0)

    def judge(self, model, loss):
        if loss < self.value:
            self.value = loss
            self.state = copy.deepcopy(model.state_dict())
            self.bad = 0
            return
        self.bad += 1
        if self.bad >= self.patience:
            model.load_state_dict(self.state)
            self.bad = 0


def callbacks(model):
    found = [Best(patience=4)]
    if dist.get_rank() == 0:
        found.append(Average(model, decay=0.9))
    return found


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(14)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    truth = torch.randn(10, 3)
    gen = torch.Generator().manual_seed(40 + rank)
    hooks = callbacks(model.module)
    for step in range(50):
        x = torch.randn(16, 10, generator=gen)
        y = (x @ truth).argmax(dim=1)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for hook in hooks:
            hook.after_step(step, model.module, loss.item())
    dist.barrier()
    time.sleep(0.3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
