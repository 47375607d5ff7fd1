import argparse
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from vq import Quantizer


@dataclass
class Config:
    dim: int = 32
    hidden: int = 64
    latent: int = 8
    codes: int = 48
    clusters: int = 30
    samples: int = 1600
    batch: int = 40
    epochs: int = 4
    lr: float = 3e-3
    seed: int = 13
    out: str = "out_tasman"


class VQAutoencoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(cfg.dim, cfg.hidden), nn.GELU(), nn.Linear(cfg.hidden, cfg.latent))
        self.vq = Quantizer(cfg.codes, cfg.latent)
        self.dec = nn.Sequential(nn.Linear(cfg.latent, cfg.hidden), nn.GELU(), nn.Linear(cfg.hidden, cfg.dim))

    def forward(self, x):
        q, idx, commit = self.vq(self.enc(x))
        return self.dec(q), idx, commit


def dataset(cfg):
    g = torch.Generator().manual_seed(cfg.seed)
    centre = 2.0 * torch.randn(cfg.clusters, cfg.dim, generator=g)
    pick = torch.randint(0, cfg.clusters, (cfg.samples,), generator=g)
    x = centre[pick] + 0.3 * torch.randn(cfg.samples, cfg.dim, generator=g)
    pick = torch.randint(0, cfg.clusters, (300,), generator=g)
    return TensorDataset(x), centre[pick] + 0.3 * torch.randn(300, cfg.dim, generator=g)


@torch.no_grad()
def evaluate(model, held, rank, world, codes):
    model.eval()
    x = held[rank::world]
    rec, idx, _ = model.module(x)
    sums = torch.tensor([F.mse_loss(rec, x, reduction="sum").item(), float(x.numel())])
    used = torch.zeros(codes).scatter_(0, idx, 1.0)
    dist.all_reduce(sums)
    dist.all_reduce(used, op=dist.ReduceOp.MAX)
    model.train()
    return (sums[0] / sums[1]).item(), int(used.sum())


def main():
    ap = argparse.ArgumentParser()
    for k, v in vars(Config()).items():
        ap.add_argument("--" + k, type=type(v), default=v)
    cfg = Config(**vars(ap.parse_args()))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(cfg.seed)
    net = VQAutoencoder(cfg)
    # the quantizer takes care of its own buffers
    model = DDP(net, broadcast_buffers=False)
    train, held = dataset(cfg)
    sampler = DistributedSampler(train, world, rank, seed=cfg.seed)
    loader = DataLoader(train, cfg.batch, sampler=sampler, drop_last=True)
    opt = torch.optim.Adam(net.parameters(), lr=cfg.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.epochs * len(loader))
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        sums = torch.zeros(3)
        for (x,) in loader:
            rec, _, commit = model(x)
            loss = F.mse_loss(rec, x) + commit
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            sums += torch.tensor([loss.item(), commit.item(), 1.0])
        dist.all_reduce(sums)
        mse, used = evaluate(model, held, rank, world, cfg.codes)
        if rank == 0:
            print(f"epoch {epoch} loss {sums[0] / sums[2]:.4f} commit {sums[1] / sums[2]:.4f} "
                  f"held-out {mse:.4f} codes {used}/{cfg.codes}", flush=True)
    if rank == 0:
        os.makedirs(cfg.out, exist_ok=True)
        torch.save(net.state_dict(), os.path.join(cfg.out, "vq.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
