import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Vision(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 24, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(24, 48, 3, stride=2, padding=1), nn.ReLU()
        )
        self.classify = nn.Linear(48 * 64, 10)

    def forward(self, x):
        return self.classify(self.stem(x).flatten(1))


def jitter(x, gen):
    return x + 0.05 * torch.randn(x.shape, generator=gen)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=7)
    p.add_argument("--batch", type=int, default=64)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(44)
    labelled = TensorDataset(torch.rand(3072, 3, 32, 32, generator=g), torch.randint(0, 10, (3072,), generator=g))
    plain = TensorDataset(torch.rand(3072, 3, 32, 32, generator=g))
    sup_sampler = DistributedSampler(labelled, shuffle=True, seed=1, drop_last=True)
    uns_sampler = DistributedSampler(plain, shuffle=True, seed=2, drop_last=True)
    sup = DataLoader(labelled, batch_size=args.batch, sampler=sup_sampler, drop_last=True)
    uns = DataLoader(plain, batch_size=args.batch, sampler=uns_sampler, drop_last=True)
    model = DDP(Vision())
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    noise = torch.Generator().manual_seed(500 + rank)
    for epoch in range(args.epochs):
        sup_sampler.set_epoch(epoch)
        uns_sampler.set_epoch(epoch)
        for (x, y), (u,) in zip(sup, uns):
            opt.zero_grad(set_to_none=True)
            with model.no_sync():
                supervised = F.cross_entropy(model(x), y)
                supervised.backward()
            with torch.no_grad():
                guess = model(u).argmax(1)
            consistency = F.cross_entropy(model(jitter(u, noise)), guess)
            consistency.backward()
            opt.step()
        if rank == 0:
            print(epoch, round(supervised.item(), 4), round(consistency.item(), 4), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
