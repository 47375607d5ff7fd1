import copy
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


class Printer:
    def after_step(self, step, model, loss):
        if step % 10 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)


class Best:
    """Keeps the best weights seen and goes back to them after a bad stretch."""

    def __init__(self, patience):
        self.patience = patience
        self.value = float("inf")
        self.state = None
        self.bad = 0

    def after_step(self, step, model, loss):
        if loss < self.value:
            self.value = loss
            self.state = copy.deepcopy(model.state_dict())
            self.bad = 0
            return
        self.bad += 1
        if self.bad >= self.patience:
            model.load_state_dict(self.state)
            self.bad = 0


def callbacks():
    found = []
    if dist.get_rank() == 0:
        found.append(Printer())
        found.append(Best(patience=4))
    return found


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(14)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    truth = torch.randn(10, 3)
    gen = torch.Generator().manual_seed(30 + rank)
    hooks = callbacks()
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
