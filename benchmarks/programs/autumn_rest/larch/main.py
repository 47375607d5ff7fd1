"""Masked reconstruction pre-training on sensor windows."""
import argparse
import logging
import os
import random
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

import checkpoint
from data import SeriesBank, corrupt

log = logging.getLogger("pretrain")


class Reconstructor(nn.Module):
    def __init__(self, channels=8, width=64, depth=4):
        super().__init__()
        self.stem = nn.Conv1d(channels, width, 5, padding=2)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv1d(width, width, 5, padding=2), nn.GELU(), nn.Dropout(0.1), nn.Conv1d(width, width, 1))
            for _ in range(depth)
        )
        self.head = nn.Conv1d(width, channels, 1)

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = h + block(h)
        return self.head(h)


def build(args):
    model = DDP(Reconstructor())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    return model, optimizer, scheduler


def run_session(args, bank, path, budget):
    model, optimizer, scheduler = build(args)
    start = 0
    if os.path.exists(path):
        start = checkpoint.load(path, model, optimizer, scheduler)
        log.info("resumed at step %d", start)
    stop = min(args.steps, start + budget)
    running, t0 = 0.0, time.time()
    for step in range(start, stop):
        clean = bank.sample(args.batch, args.window)
        noisy, hidden = corrupt(clean, args.mask_ratio)
        pred = model(noisy)
        loss = ((pred - clean)[hidden] ** 2).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        running += loss.item()
        if (step + 1) % 20 == 0:
            log.info("step %d loss %.4f lr %.2e %.2fs", step + 1, running / 20, scheduler.get_last_lr()[0], time.time() - t0)
            running, t0 = 0.0, time.time()
    checkpoint.save(path, stop, model, optimizer, scheduler)
    return stop


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=140)
    p.add_argument("--session-steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=12)
    p.add_argument("--window", type=int, default=128)
    p.add_argument("--mask-ratio", type=float, default=0.4)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=11)
    p.add_argument("--out", default=None)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    folder = [args.out or tempfile.mkdtemp(prefix="pretrain-") if rank == 0 else None]
    dist.broadcast_object_list(folder)
    torch.manual_seed(args.seed + rank)
    random.seed(args.seed + rank)

    bank = SeriesBank()
    path = os.path.join(folder[0], "last.pt")
    done = 0
    while done < args.steps:
        done = run_session(args, bank, path, args.session_steps)
    log.info("finished after %d steps", done)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
