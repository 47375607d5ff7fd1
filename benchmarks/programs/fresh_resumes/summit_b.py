import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Meter:
    def __init__(self, members):
        self.members = members
        self.group = None
        self.total = torch.zeros(2)

    def open(self):
        self.group = dist.new_group(self.members)

    def add(self, loss):
        self.total += torch.stack([loss.detach(), torch.ones(())])

    def read(self):
        total = self.total.clone()
        dist.all_reduce(total, group=self.group)
        self.total.zero_()
        return (total[0] / total[1]).item()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.seq = nn.Sequential(nn.Linear(96, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 9))

    def forward(self, x):
        return self.seq(x)


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--warmup_steps", type=int, default=10)
    return p.parse_args()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(72)
    data = TensorDataset(torch.randn(4608, 96, generator=g), torch.randint(0, 9, (4608,), generator=g))
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    model = DDP(Net())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    reporters = list(range(world - 1))
    meter = Meter(reporters)
    overall = Meter(list(range(world)))
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            step += 1
            if rank in reporters:
                if step == args.warmup_steps:
                    meter.open()
                if step > args.warmup_steps:
                    meter.add(loss)
            overall.add(loss)
        if overall.group is None:
            overall.open()
        value = overall.read()
        if rank in reporters:
            part = meter.read()
            if rank == 0:
                print(epoch, round(value, 4), round(part, 4), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
