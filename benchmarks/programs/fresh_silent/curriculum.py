import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler


class Signals(Dataset):
    def __init__(self, n, seed, dim=32):
        g = torch.Generator().manual_seed(seed)
        self.noise = torch.rand(n, generator=g)
        self.y = torch.randint(0, 4, (n,), generator=g)
        t = torch.linspace(0, 6.2832, dim)
        clean = torch.sin((self.y[:, None] + 1) * t)
        self.x = clean + self.noise[:, None] * torch.randn(n, dim, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class EasyFirst(Sampler):
    """Every epoch draws from a larger share of the samples, the easiest first; ranks take turns in one common order."""

    def __init__(self, difficulty, rank, world, epochs):
        self.order = difficulty.argsort().tolist()
        self.rank, self.world, self.epochs = rank, world, epochs
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def pool(self):
        share = 0.4 + 0.6 * self.epoch / (self.epochs - 1)
        size = int(len(self.order) * share) // self.world * self.world
        return self.order[:size]

    def __len__(self):
        return len(self.pool()) // self.world

    def __iter__(self):
        pool = self.pool()
        g = torch.Generator().manual_seed(1000 + self.epoch)
        mixed = torch.randperm(len(pool), generator=g).tolist()
        return iter([pool[k] for k in mixed[self.rank :: self.world]])


def augment(x, generator):
    shift = torch.randint(-2, 3, (1,), generator=generator).item()
    gain = 0.8 + 0.4 * torch.rand(len(x), 1, generator=generator)
    return x.roll(shift, dims=1) * gain


@torch.no_grad()
def accuracy(net, data):
    net.eval()
    hits = sum((net(x).argmax(1) == y).sum().item() for x, y in DataLoader(data, batch_size=100))
    net.train()
    return hits / len(data)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(25)
    model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)))
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    train, held = Signals(800, seed=1), Signals(250, seed=2)
    sampler = EasyFirst(train.noise, rank, world, args.epochs)
    loader = DataLoader(train, batch_size=16, sampler=sampler)
    own = torch.Generator().manual_seed(3000 + rank)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(augment(x, own)), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} accuracy {accuracy(model.module, held):.3f}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
