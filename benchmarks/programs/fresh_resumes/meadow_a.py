import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

WIDTH = {"text": 96, "image": 256, "audio": 160, "table": 48}
SOURCES = list(WIDTH)


class Mixture(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(11)
        self.x = torch.randn(n, 256, generator=g)
        self.y = torch.randint(0, 8, (n,), generator=g)
        self.source = torch.randint(0, len(SOURCES), (n,), generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i], self.source[i]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU())
        self.head = nn.Linear(512, 8)

    def forward(self, x):
        return self.head(self.body(x))


def update_moments(moments, x, source):
    for row, s in zip(x, source.tolist()):
        name = SOURCES[s]
        part = row[: WIDTH[name]]
        if name not in moments:
            moments[name] = torch.zeros(WIDTH[name] + 1)
        moments[name][:-1] += part
        moments[name][-1] += 1


def mean_per_source(moments):
    means = {}
    for name, total in moments.items():
        dist.all_reduce(total)
        means[name] = total[:-1] / total[-1]
    return means


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch", type=int, default=128)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = Mixture(8192)
    sampler = DistributedSampler(data, world, rank, shuffle=True, seed=5, drop_last=True)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    model = DDP(Net())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    lossf = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        moments = {}
        for x, y, source in loader:
            opt.zero_grad(set_to_none=True)
            loss = lossf(model(x), y)
            loss.backward()
            opt.step()
            update_moments(moments, x, source)
        means = mean_per_source(moments)
        if rank == 0:
            print(epoch, {k: round(v.norm().item(), 4) for k, v in sorted(means.items())}, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
