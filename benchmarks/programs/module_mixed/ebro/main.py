import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from corpus import LogDataset, shards_for
from kernel_cache import KernelCache

STEPS = 24
BATCH = 16


class FusedLayer(nn.Module):
    def __init__(self, fn, d_in, d_out):
        super().__init__()
        self.fn = fn
        self.weight = nn.Parameter(torch.empty(d_out, d_in))
        self.bias = nn.Parameter(torch.zeros(d_out))
        nn.init.kaiming_uniform_(self.weight, a=5 ** 0.5)

    def forward(self, x):
        return self.fn(x, self.weight, self.bias)


class LogClassifier(nn.Module):
    def __init__(self, cache):
        super().__init__()
        gate = cache.create("gate", "swish")
        self.body = nn.Sequential(FusedLayer(gate, 32, 64), FusedLayer(gate, 64, 64))
        self.out = nn.Linear(64, 2)

    def forward(self, x):
        return self.out(self.body(x))


def shared_dir():
    box = [tempfile.mkdtemp(prefix="kcache_") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def cycle(loader):
    while True:
        yield from loader


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)
    cache = KernelCache(os.path.join(shared_dir(), "compiled"))

    lo, hi = shards_for(rank, world, 9000)
    data = LogDataset(lo, hi)
    model = DDP(LogClassifier(cache))
    opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()

    batches = cycle(DataLoader(data, batch_size=BATCH, shuffle=True, drop_last=True))
    for step in range(STEPS):
        x, y = next(batches)
        loss = loss_fn(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 6 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
