import argparse
import os
import shutil

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from session import Checkpoint, open_group


class Autoencoder(nn.Module):
    def __init__(self, width=256, code=24):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(width, 512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, code))
        self.dec = nn.Sequential(nn.Linear(code, 512), nn.GELU(), nn.Linear(512, width))

    def forward(self, x):
        return self.dec(self.enc(x))


class Cursor:
    """Position in the rank's own pass over the data."""

    def __init__(self, rank, world, rows, batch):
        self.rank, self.world, self.rows, self.batch = rank, world, rows, batch
        self.epoch = self.offset = 0

    def take(self):
        per_rank = self.rows // self.world
        if self.offset + self.batch > per_rank:
            self.epoch, self.offset = self.epoch + 1, 0
        order = torch.randperm(self.rows, generator=torch.Generator().manual_seed(self.epoch))
        mine = order[self.rank::self.world][self.offset:self.offset + self.batch]
        self.offset += self.batch
        return mine

    def state_dict(self):
        return {"epoch": self.epoch, "offset": self.offset}

    def load_state_dict(self, state):
        self.epoch, self.offset = state["epoch"], state["offset"]


def generation(number, args, data, ckpt):
    open_group(number)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed + rank)
    net = Autoencoder()
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr)
    cursor = Cursor(rank, world, len(data), args.batch)
    common, private = ckpt.load()
    step = 0
    if common is not None:
        net.load_state_dict(common["net"])
        optimizer.load_state_dict(common["optimizer"])
        cursor.load_state_dict(private["cursor"])
        step = common["step"]
    model = DDP(net)
    if private is not None:
        torch.set_rng_state(private["rng"])
    end = min(args.steps, step + args.lease)
    while step < end:
        x = data[cursor.take()]
        loss = F.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 25 == 0 and rank == 0:
            print(f"generation {number} step {step} epoch {cursor.epoch} loss {loss.item():.4f}", flush=True)
    ckpt.save(
        {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
        {"cursor": cursor.state_dict(), "rng": torch.get_rng_state()},
    )
    dist.destroy_process_group()
    return step


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=260)
    p.add_argument("--lease", type=int, default=70)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=21)
    args = p.parse_args()
    folder = f"/tmp/ae-{os.environ['MASTER_PORT']}-{os.getppid()}"
    os.makedirs(folder, exist_ok=True)
    g = torch.Generator().manual_seed(8)
    data = torch.randn(6000, 12, generator=g) @ torch.randn(12, 256, generator=g) / 4
    ckpt = Checkpoint(folder)
    step = number = 0
    while step < args.steps:
        step = generation(number, args, data, ckpt)
        number += 1
    if int(os.environ["RANK"]) == 0:
        print(f"{number} generations, {step} steps", flush=True)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
