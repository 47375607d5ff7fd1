"""Mean teacher whose average is sharded; the full teacher is put together every few steps."""
import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from ema import ShardedEMA

STEPS, BATCH, REFRESH = 24, 32, 4


def net():
    return nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 4))


class Semi:
    def __init__(self, rank):
        self.g = torch.Generator().manual_seed(90 + rank)
        self.c = torch.randn(4, 12, generator=torch.Generator().manual_seed(0))

    def draw(self, n):
        y = torch.randint(0, 4, (n,), generator=self.g)
        return self.c[y] + torch.randn(n, 12, generator=self.g), y

    def view(self, x):
        return x + 0.3 * torch.randn(x.shape, generator=self.g)


def ramp(step, length=12):
    return min(1.0, step / length)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    student = net()
    model = DDP(student)
    ema, teacher = ShardedEMA(student), copy.deepcopy(student).requires_grad_(False)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = Semi(rank)
    for step in range(STEPS):
        (x, y), (u, _) = data.draw(8), data.draw(BATCH)
        with torch.no_grad():
            soft = teacher(data.view(u)).softmax(-1)
        out = model(torch.cat([x, data.view(u)]))
        loss = F.cross_entropy(out[:8], y) + ramp(step) * F.mse_loss(out[8:].softmax(-1), soft)
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update(student)
        if (step + 1) % REFRESH == 0:
            ema.gather_into(teacher)
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
