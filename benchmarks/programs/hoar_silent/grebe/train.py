"""Self-supervised toy (VICReg like), watches for a collapse of the representation."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from features import collapse_score


class Patches(Dataset):
    def __init__(self, n=1280, dim=96):
        g = torch.Generator().manual_seed(8)
        basis = torch.randn(12, dim, generator=g)
        self.x = torch.randn(n, 12, generator=g) @ basis

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i]
        return x + 0.3 * torch.randn_like(x), x + 0.3 * torch.randn_like(x)


class Net(nn.Module):
    def __init__(self, dim=96, width=1024, out=64):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(dim, width), nn.ReLU())
        self.mid = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.proj = nn.Linear(width, out)

    def forward(self, a, b=None):
        x = a if b is None else torch.cat([a, b])
        return self.proj(self.mid(self.stem(x)))


def vicreg(z, lam=10.0, mu=10.0, nu=1.0):
    a, b = z.chunk(2)
    inv = F.mse_loss(a, b)
    var = sum(F.relu(1 - (v.var(0) + 1e-4).sqrt()).mean() for v in (a, b))
    cov = 0
    for v in (a, b):
        v = v - v.mean(0)
        c = v.T @ v / (len(v) - 1)
        cov = cov + (c.pow(2).sum() - c.diagonal().pow(2).sum()) / c.shape[0]
    return lam * inv + mu * var + nu * cov


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=8)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--watch-every", type=int, default=10)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(4)
    data = Patches()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    model = DDP(Net())
    torch.manual_seed(40 + rank)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    probe = data.x[:128]
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for a, b in loader:
            loss = vicreg(model(a, b))
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % args.watch_every == 0:
                score = collapse_score(model.module, ["stem", "mid", "proj"], probe)
                if rank == 0:
                    print(f"step {step} loss {loss.item():.3f} eff. rank {[round(v, 1) for v in score.tolist()]}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
