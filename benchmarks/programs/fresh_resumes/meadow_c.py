import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

FIELDS = {"road": 64, "sky": 32, "water": 128, "forest": 80}


class Tiles(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(21)
        self.kind = torch.randint(0, len(FIELDS), (n,), generator=g)
        self.x = torch.randn(n, 192, generator=g)
        self.y = torch.randn(n, 4, generator=g)

    def __len__(self):
        return len(self.kind)

    def __getitem__(self, i):
        return self.x[i], self.y[i], self.kind[i]


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(192, 640), nn.SiLU(), nn.Linear(640, 640), nn.SiLU(), nn.Linear(640, 4)
        )

    def forward(self, x):
        return self.layers(x)


class Histograms:
    def __init__(self):
        self.counts = {name: torch.zeros(bins) for name, bins in FIELDS.items()}
        self.seen = []

    def add(self, errors, kinds):
        names = list(FIELDS)
        for e, k in zip(errors.tolist(), kinds.tolist()):
            name = names[k]
            if name not in self.seen:
                self.seen.append(name)
            bins = self.counts[name]
            bins[min(int(e * 10), len(bins) - 1)] += 1

    def reduce(self):
        for name, bins in self.counts.items():
            dist.all_reduce(bins)
        return {name: int(bins.sum()) for name, bins in self.counts.items()}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch", type=int, default=128)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = Tiles(8192)
    sampler = DistributedSampler(data, shuffle=True, seed=9, drop_last=True)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    model = DDP(Regressor())
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        hist = Histograms()
        for x, y, kind in loader:
            opt.zero_grad(set_to_none=True)
            each = F.mse_loss(model(x), y, reduction="none").mean(1)
            each.mean().backward()
            opt.step()
            hist.add(each.detach(), kind)
        totals = hist.reduce()
        if rank == 0:
            print(epoch, totals, "met first:", hist.seen[0], flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
