import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Ranker(nn.Module):
    def __init__(self, feats=64, hidden=384, depth=4):
        super().__init__()
        self.inp = nn.Linear(feats, hidden)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, hidden), nn.GELU(),
                                                  nn.Linear(hidden, hidden)) for _ in range(depth))
        self.out = nn.Linear(hidden, 1)

    def forward(self, docs):
        h = self.inp(docs)
        for block in self.blocks:
            h = h + block(h)
        return self.out(h).squeeze(-1)


def queries(n=1536, docs=24, feats=64, seed=33):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, docs, feats, generator=g)
    w1 = torch.randn(feats, 16, generator=g) / 8
    gain = torch.tanh(x @ w1).sum(-1) + 0.3 * torch.randn(n, docs, generator=g)
    return TensorDataset(x, gain.argsort(1).argsort(1).float() / (docs - 1))


class Handshake:
    """Tells over a file store which snapshot of rank 0 is complete on disk."""

    def __init__(self, folder, rank, world):
        self.store = dist.FileStore(os.path.join(folder, "handshake"), world)
        self.folder, self.rank, self.world = folder, rank, world

    def path(self, epoch):
        return os.path.join(self.folder, f"snapshot_{epoch:02d}.pt")

    def announce(self, epoch):
        self.store.set(f"snapshot/{epoch:02d}", str(os.path.getsize(self.path(epoch))))

    def confirm(self, epoch):
        self.store.wait([f"snapshot/{epoch:02d}"])
        ok = int(self.store.get(f"snapshot/{epoch:02d}")) == os.path.getsize(self.path(epoch))
        self.store.set(f"snapshot/{epoch:02d}/seen/{self.rank}", str(int(ok)))

    def tidy(self, epoch):
        keys = [f"snapshot/{epoch:02d}/seen/{r}" for r in range(1, self.world)]
        self.store.wait(keys)
        if epoch > 0:
            os.remove(self.path(epoch - 1))
        return all(int(self.store.get(k)) for k in keys)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = [tempfile.mkdtemp(prefix="nape_") if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    shake = Handshake(folder[0], rank, world)
    torch.manual_seed(15)
    net = Ranker()
    model = DDP(net)
    opt = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.Adam, lr=args.lr)
    data = queries()
    sampler = DistributedSampler(data, world, rank, seed=24)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for docs, gain in loader:
            score = model(docs)
            loss = -(F.softmax(4 * gain, -1) * F.log_softmax(score, -1)).sum(-1).mean()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
        opt.consolidate_state_dict(to=0)
        if rank == 0:
            torch.save({"model": net.state_dict(), "opt": opt.state_dict(), "epoch": epoch}, shake.path(epoch))
            shake.announce(epoch)
            print(f"epoch {epoch} loss {loss.item():.4f} confirmed {shake.tidy(epoch)}", flush=True)
        else:
            shake.confirm(epoch)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
