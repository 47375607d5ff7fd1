import argparse
import logging
import uuid
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from shards import Archive, load, stage, wait_staged

log = logging.getLogger("main")


@dataclass
class Config:
    shards: int = 6
    rows: int = 320
    seconds_per_shard: float = 1.4
    batch: int = 32
    epochs: int = 3
    lr: float = 5e-3
    seed: int = 101


def build():
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3))


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    hits = torch.zeros(2)
    for x, y in loader:
        hits += torch.tensor([(model(x).argmax(1) == y).sum().item(), len(y)])
    model.train()
    dist.all_reduce(hits)
    return (hits[0] / hits[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--seconds-per-shard", type=float, default=1.4)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format=f"r{rank} %(name)s %(message)s")
    cfg = Config(epochs=args.epochs, seconds_per_shard=args.seconds_per_shard)
    box = [uuid.uuid4().hex if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    token = box[0]
    folder = Path("staged") / token[:12]
    if rank == 0:
        stage(Archive(cfg.shards, cfg.rows, cfg.seconds_per_shard, cfg.seed), folder, token)
    info = wait_staged(folder, token)
    x, y = load(folder, info)

    data = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    perm = torch.randperm(len(data), generator=torch.Generator().manual_seed(cfg.seed)).tolist()
    cut = int(0.8 * len(data))
    train, held = Subset(data, perm[:cut]), perm[cut:]
    val = DataLoader(Subset(data, held[rank::world]), 64)
    sampler = DistributedSampler(train, seed=cfg.seed)
    loader = DataLoader(train, cfg.batch, sampler=sampler)
    torch.manual_seed(cfg.seed)
    model = DDP(build())
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, cfg.epochs * len(loader))
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        for xb, yb in loader:
            loss = F.cross_entropy(model(xb), yb)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
        acc = accuracy(model.module, val)
        log.info("epoch %d loss %.4f accuracy %.3f", epoch, loss.item(), acc)
    dist.barrier()
    if rank == 0:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
