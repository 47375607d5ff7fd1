import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from gather import gather_rows


class TwoViews(Dataset):
    def __init__(self, n=1152, dim=40):
        g = torch.Generator().manual_seed(0)
        self.x = torch.randn(n, dim, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i]
        views = [x * (torch.rand_like(x) > 0.2) + 0.2 * torch.randn_like(x) for _ in range(2)]
        return views[0], views[1]


class Encoder(nn.Module):
    def __init__(self, dim=40, width=128, out=32):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, out)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, a, b):
        z = F.normalize(self.head(self.trunk(torch.cat([a, b]))), dim=-1)
        za, zb = z.chunk(2)
        return za, zb, self.scale.exp().clamp(max=50)


def clip_loss(za, zb, scale):
    """Own rows against all rows."""
    all_a, all_b = gather_rows(za), gather_rows(zb)
    target = torch.arange(len(za)) + dist.get_rank() * len(za)
    return 0.5 * (F.cross_entropy(scale * za @ all_b.T, target) + F.cross_entropy(scale * zb @ all_a.T, target))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch-size", type=int, default=32)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    model = DDP(Encoder())
    torch.manual_seed(50 + rank)
    data = TwoViews()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for a, b in loader:
            loss = clip_loss(*model(a, b))
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} nce {total.item() / len(loader) / dist.get_world_size():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
