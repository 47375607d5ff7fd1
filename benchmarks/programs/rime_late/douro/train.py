"""Byte-level language model on random windows of one memory-mapped file.

There are no epochs: every rank draws its own windows, with replacement, from the whole file.
"""
import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from prepare import prepare

HERE = os.path.dirname(os.path.abspath(__file__))


class ByteModel(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed = nn.Embedding(128, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, 128)

    def forward(self, x):
        return self.head(self.gru(self.embed(x))[0])


class Windows:
    def __init__(self, path, block, batch, seed):
        self.tokens = np.memmap(path, dtype=np.uint8, mode="r")
        self.block, self.batch = block, batch
        self.rng = np.random.default_rng(seed)

    def get(self):
        starts = self.rng.integers(0, len(self.tokens) - self.block, size=self.batch)
        rows = np.stack([self.tokens[s:s + self.block + 1] for s in starts]).astype(np.int64)
        rows = torch.from_numpy(rows)
        return rows[:, :-1], rows[:, 1:]


def loss_on(model, x, y):
    return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=480)
    ap.add_argument("--eval-every", type=int, default=120)
    ap.add_argument("--block", type=int, default=48)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--lr", type=float, default=4e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    files = {split: os.path.join(HERE, f"{split}.bin") for split in ("train", "val")}
    if rank == 0:
        prepare(files["train"], 8000, seed=1)
        prepare(files["val"], 800, seed=2)
    dist.barrier()
    windows = Windows(files["train"], args.block, args.batch, seed=1337 + rank)
    torch.manual_seed(1337)
    model = DDP(ByteModel(args.dim))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.iters)
    for it in range(1, args.iters + 1):
        loss = loss_on(model, *windows.get())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if it % args.eval_every == 0:
            check = Windows(files["val"], args.block, 32, seed=90 + rank)
            with torch.no_grad():
                val = sum(loss_on(model.module, *check.get()) for _ in range(4)) / 4
            dist.all_reduce(val)
            if rank == 0:
                print(f"iter {it} train {loss.item():.4f} val {val.item() / world:.4f}", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), os.path.join(HERE, "bytes.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
