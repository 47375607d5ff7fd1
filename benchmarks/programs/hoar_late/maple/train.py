import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from launch_env import discover


class Spirals(Dataset):
    def __init__(self, n):
        t = torch.rand(n, generator=torch.Generator().manual_seed(0)) * 6
        self.label = (torch.arange(n) % 2)
        phase = t + self.label * torch.pi
        self.x = torch.stack([t * phase.cos(), t * phase.sin()], 1) / 6

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.label[i]


@contextlib.contextmanager
def process_group(env):
    dist.init_process_group("gloo", rank=env.rank, world_size=env.world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def evaluate(model, loader):
    hits = torch.zeros(2)
    with torch.no_grad():
        for x, y in loader:
            hits += torch.tensor([(model(x).argmax(1) == y).sum().item(), len(y)])
    dist.all_reduce(hits)
    return (hits[0] / hits[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--accumulate", type=int, default=2)
    args = ap.parse_args()
    env = discover()
    with process_group(env):
        torch.manual_seed(1)
        ds = Spirals(600)
        sampler = DistributedSampler(ds)
        loader = DataLoader(ds, batch_size=20, sampler=sampler)
        model = DDP(nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)))
        opt = torch.optim.Adam(model.parameters(), lr=5e-3)
        for epoch in range(args.epochs):
            sampler.set_epoch(epoch)
            for i, (x, y) in enumerate(loader):
                last = (i + 1) % args.accumulate == 0 or i + 1 == len(loader)
                with contextlib.nullcontext() if last else model.no_sync():
                    nn.functional.cross_entropy(model(x), y).backward()
                if last:
                    opt.step()
                    opt.zero_grad()
            acc = evaluate(model, loader)
            if env.rank == 0:
                print(f"epoch {epoch} accuracy {acc:.3f}", flush=True)


if __name__ == "__main__":
    main()
