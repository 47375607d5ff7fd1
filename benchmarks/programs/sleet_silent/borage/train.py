#!/usr/bin/env python
"""Keyword spotting on sharded waveforms."""
import argparse
import os
import shutil
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from shards import ShardedAudio, write_shards


def conv_block(cin, cout, stride):
    return nn.Sequential(nn.Conv1d(cin, cout, 9, stride=stride, padding=4), nn.GroupNorm(4, cout), nn.SiLU())


class KWSNet(nn.Module):
    def __init__(self, classes=6):
        super().__init__()
        self.body = nn.Sequential(conv_block(1, 16, 2), conv_block(16, 32, 2), conv_block(32, 32, 2))
        self.head = nn.Linear(32, classes)

    def forward(self, wav):
        return self.head(self.body(wav.unsqueeze(1)).mean(-1))


class Trainer:
    def __init__(self, cfg, root):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        self.ds = ShardedAudio(root, self.rank, self.world, seed=cfg.seed)
        self.dl = DataLoader(self.ds, batch_size=cfg.batch, num_workers=cfg.workers, drop_last=True)
        self.net = DDP(KWSNet())
        self.opt = torch.optim.SGD(self.net.parameters(), lr=cfg.lr, momentum=0.9, nesterov=True)
        self.crit = nn.CrossEntropyLoss(label_smoothing=0.05)

    def say(self, *a):
        if self.rank == 0:
            print(time.strftime("%H:%M:%S"), *a, flush=True)

    def epoch(self, ep):
        self.ds.set_epoch(ep)
        n = total = 0
        for key, wav, y in self.dl:
            loss = self.crit(self.net(wav), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            total += loss.item() * len(y)
            n += len(y)
        agg = torch.tensor([total, n])
        dist.all_reduce(agg)
        self.say(f"epoch {ep}: loss {agg[0] / agg[1]:.4f}")

    def fit(self):
        for ep in range(self.cfg.epochs):
            self.epoch(ep)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--seed", type=int, default=7)
    ap.add_argument("--shards", type=int, default=12)
    ap.add_argument("--per-shard", type=int, default=64)
    cfg = ap.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    box = [tempfile.mkdtemp(prefix="kws-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    root = box[0]
    if dist.get_rank() == 0:
        write_shards(root, cfg.shards, cfg.per_shard)
    dist.barrier()
    Trainer(cfg, root).fit()
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(root, ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
