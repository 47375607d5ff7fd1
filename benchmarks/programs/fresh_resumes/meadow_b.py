import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

TASKS = ("color", "shape", "depth")


class Trunk(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(128, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.heads = nn.ModuleDict({t: nn.Linear(width, 6) for t in TASKS})

    def forward(self, x):
        h = self.stem(x)
        return {t: self.heads[t](h) for t in TASKS}


def make_data(n):
    g = torch.Generator().manual_seed(3)
    x = torch.randn(n, 128, generator=g)
    y = torch.randint(0, 6, (n, len(TASKS)), generator=g)
    return TensorDataset(x, y)


class HardPool:
    """Losses of the hardest items of each task, for the curriculum."""

    def __init__(self, floor):
        self.floor = floor
        self.items = {t: [] for t in TASKS}

    def add(self, task, losses):
        self.items[task].append(losses[losses > self.floor])

    def collect(self):
        world = dist.get_world_size()
        pooled = {}
        for task, parts in self.items.items():
            mine = torch.cat(parts)
            got = [torch.empty_like(mine) for _ in range(world)]
            dist.all_gather(got, mine)
            pooled[task] = torch.cat(got)
        self.items = {t: [] for t in TASKS}
        return pooled


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--floor", type=float, default=1.9)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = make_data(8192)
    sampler = DistributedSampler(data, shuffle=True, seed=2, drop_last=True)
    loader = DataLoader(data, batch_size=128, sampler=sampler, drop_last=True)
    model = DDP(Trunk())
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        pool = HardPool(args.floor)
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            out = model(x)
            total = 0.0
            for k, task in enumerate(TASKS):
                each = F.cross_entropy(out[task], y[:, k], reduction="none")
                pool.add(task, each.detach())
                total = total + each.mean()
            total.backward()
            opt.step()
        pooled = pool.collect()
        if rank == 0:
            print(epoch, {t: (len(v), round(v.mean().item(), 3)) for t, v in pooled.items()}, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
