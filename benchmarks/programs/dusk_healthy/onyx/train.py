"""SimCLR on synthetic images, monitored by a weighted kNN on a memory bank."""
import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from losses import nt_xent


class Encoder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        def unit(i, o, s):
            return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())
        self.body = nn.Sequential(unit(3, width, 1), unit(width, 2 * width, 2), unit(2 * width, 2 * width, 2),
                                  nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.proj = nn.Sequential(nn.Linear(8 * width, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x):
        return self.proj(self.body(x))


def images(n, seed):
    g = torch.Generator().manual_seed(14)
    proto = F.interpolate(torch.randn(8, 3, 4, 4, generator=g), size=16)
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(8, (n,), generator=g)
    return TensorDataset(proto[y] + 0.7 * torch.randn(n, 3, 16, 16, generator=g), y)


def augment(x):
    shift = torch.randint(-2, 3, (2,)).tolist()
    x = torch.roll(x, shift, (2, 3))
    gain = 0.7 + 0.6 * torch.rand(len(x), 3, 1, 1)
    keep = (torch.rand(len(x), 1, 16, 16) > 0.15).float()
    return x * gain * keep + 0.2 * torch.randn_like(x)


class MemoryBank:
    """Features of the whole training set, filled by all the processes, held by each."""

    def __init__(self, n, dim):
        self.feat, self.label = torch.zeros(n, dim), torch.full((n,), -1)

    @torch.no_grad()
    def fill(self, net, ds):
        rank, world = dist.get_rank(), dist.get_world_size()
        mine = torch.arange(rank, len(ds), world)
        size = (len(ds) + world - 1) // world
        feats = torch.cat([F.normalize(net.body(x), dim=1) for x, _ in DataLoader(Subset(ds, mine.tolist()), 128)])
        pad = size - len(feats)
        block = F.pad(feats, (0, 0, 0, pad))
        blocks = [torch.empty_like(block) for _ in range(world)]
        dist.all_gather(blocks, block)
        for r, b in enumerate(blocks):
            idx = torch.arange(r, len(ds), world)
            self.feat[idx], self.label[idx] = b[: len(idx)], ds.tensors[1][idx]

    @torch.no_grad()
    def knn(self, net, ds, k=20):
        rank, world = dist.get_rank(), dist.get_world_size()
        x, y = (t[rank::world] for t in ds.tensors)
        sim, idx = (F.normalize(net.body(x), dim=1) @ self.feat.T).topk(k, dim=1)
        votes = torch.zeros(len(x), 8).scatter_add_(1, self.label[idx], (sim / 0.1).exp())
        stat = torch.tensor([(votes.argmax(1) == y).sum().item(), len(y)])
        dist.all_reduce(stat)
        return (stat[0] / stat[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = Encoder()
    model = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(net) if torch.cuda.is_available() else net)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    train, val = images(1250, 1), images(301, 2)
    sampler = DistributedSampler(train, world, rank, drop_last=True)
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)
    bank = MemoryBank(len(train), 8 * 32)
    torch.manual_seed(77 + rank)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        t0 = time.time()
        model.train()
        for x, _ in loader:
            # both views in one forward: DDP wants one forward per backward
            z1, z2 = model(torch.cat([augment(x), augment(x)])).chunk(2)
            loss = nt_xent(z1, z2)
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        # all the processes embed with the running statistics of rank 0
        for b in model.module.buffers():
            dist.broadcast(b, src=0)
        bank.fill(model.module, train)
        acc = bank.knn(model.module, val)
        print(f"rank {rank} epoch {epoch} loss {loss.item():.4f} knn {acc:.3f} {time.time() - t0:.1f}s", flush=True)
    if rank == 0:
        out = args.out or tempfile.mkdtemp()
        os.makedirs(out, exist_ok=True)
        torch.save({"net": model.module.state_dict(), "bank": bank.feat}, os.path.join(out, "simclr.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
