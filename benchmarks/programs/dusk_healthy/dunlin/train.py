"""k-fold cross-validation, the folds dealt out over the processes, then one final DDP fit.

    python train.py --folds 5 --workers 2
"""
import argparse
import os
import socket
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


def make_net(width, seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(40, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width),
                         nn.GELU(), nn.Linear(width, 5))


def load():
    g = torch.Generator().manual_seed(21)
    w = torch.randn(40, 16, generator=g)
    v = torch.randn(16, 5, generator=g)
    x = torch.randn(3003, 40, generator=g)
    return TensorDataset(x, (torch.tanh(x @ w / 4) @ v + 0.4 * torch.randn(3003, 5, generator=g)).argmax(1))


def kfold(n, k, seed=0):
    perm = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    parts = perm.chunk(k)
    for i in range(k):
        yield torch.cat([p for j, p in enumerate(parts) if j != i]).tolist(), parts[i].tolist()


@torch.no_grad()
def val_loss(net, ds, idx):
    net.eval()
    x, y = ds.tensors
    out = F.cross_entropy(net(x[idx]), y[idx]).item()
    net.train()
    return out


def fit_fold(rank, fold, train_idx, val_idx, ds, args):
    """Early stopping: how long a fold takes is its own business."""
    net = make_net(args.width, seed=fold)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=0.05)
    loader = DataLoader(Subset(ds, train_idx), args.batch_size, shuffle=True,
                        generator=torch.Generator().manual_seed(fold))
    best, best_epoch = float("inf"), 0
    for epoch in range(args.max_epochs):
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            opt.step()
        cur = val_loss(net, ds, val_idx)
        if cur < best - 1e-3:
            best, best_epoch = cur, epoch
        elif epoch - best_epoch >= args.patience:
            break
    print(f"rank {rank} fold {fold}: best val {best:.4f} at epoch {best_epoch}, stopped at {epoch}", flush=True)
    return {"fold": fold, "val": best, "epochs": best_epoch + 1}


def final_fit(rank, world, ds, epochs, args):
    ddp = DDP(make_net(args.width, seed=1234))
    opt = torch.optim.AdamW(ddp.parameters(), lr=args.lr, weight_decay=0.05)
    sampler = DistributedSampler(ds, world, rank, seed=5)
    loader = DataLoader(ds, args.batch_size // world, sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(ddp(x), y)
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"final fit epoch {epoch} loss {loss.item():.3f}", flush=True)
    return ddp.module


def worker(rank, port, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=args.workers)
    torch.set_num_threads(1)
    ds = load()
    mine = []
    for fold, (tr, va) in enumerate(kfold(len(ds), args.folds)):
        if fold % args.workers == rank:
            mine.append(fit_fold(rank, fold, tr, va, ds, args))
    everything = [None] * args.workers
    dist.all_gather_object(everything, mine)          # the one with fewer folds waits here
    results = sorted((r for part in everything for r in part), key=lambda r: r["fold"])
    epochs = round(sum(r["epochs"] for r in results) / len(results))
    if rank == 0:
        print(f"cv loss {sum(r['val'] for r in results) / len(results):.4f}, refit for {epochs} epochs", flush=True)
    net = final_fit(rank, args.workers, ds, epochs, args)
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save(net.state_dict(), os.path.join(args.out, "model.pt"))
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--folds", type=int, default=5)
    ap.add_argument("--width", type=int, default=192)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--max-epochs", type=int, default=12)
    ap.add_argument("--patience", type=int, default=2)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    args.out = args.out or tempfile.mkdtemp()
    mp.spawn(worker, args=(free_port(), args), nprocs=args.workers, join=True)
