"""FSDP2 training of a sequence-to-value model on a cluster with short job slots.

The job runs in slots of --slot-steps; every slot builds everything anew and continues from the
newest checkpoint below --out.

    torchrun --nproc_per_node 2 train.py
"""
import argparse
import logging
import os
import shutil
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

from checkpointing import CheckpointManager

log = logging.getLogger("slots")


class Mixer(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.channel = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.token(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel(self.n2(x))


class Net(nn.Module):
    def __init__(self, tokens=32, dim=128, depth=4):
        super().__init__()
        self.embed = nn.Linear(8, dim)
        self.blocks = nn.ModuleList(Mixer(tokens, dim) for _ in range(depth))
        self.head = nn.Linear(dim, 1)

    def forward(self, x):
        x = self.embed(x)
        for b in self.blocks:
            x = b(x)
        return self.head(x.mean(1)).squeeze(-1)


class Stream:
    """Samples are a function of a counter, so the position is all there is to save."""

    def __init__(self, batch_size, rank, world, seed):
        self.batch_size, self.rank, self.world, self.seed = batch_size, rank, world, seed
        self.position = 0
        self.w = torch.randn(32, 8, generator=torch.Generator().manual_seed(seed)) * 0.2

    def next(self):
        g = torch.Generator().manual_seed(self.seed + 1 + self.position * self.world + self.rank)
        self.position += 1
        x = torch.randn(self.batch_size, 32, 8, generator=g)
        y = torch.tanh((x * self.w).sum((1, 2))) + 0.5 * torch.sin(2 * x[:, :, 0].mean(1) * x[:, :, 1].sum(1))
        return x, y

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def run_slot(args, slot, folder):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = Net()
    for b in model.blocks:
        fully_shard(b)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.99), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / args.warmup))
    stream = Stream(args.batch_size, rank, world, args.seed)
    manager = CheckpointManager(folder, model, optimizer, scheduler, stream)

    step = 0
    newest = manager.latest()
    if newest is not None:
        step = manager.load(newest)
        log.info("slot %d: resumed at step %d", slot, step)
    end, tick, running = step + args.slot_steps, time.time(), 0.0
    while step < end:
        x, y = stream.next()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        running += loss.item()
        if step % 10 == 0:
            log.info("slot %d step %d loss %.4f lr %.2e %.1fs", slot, step, running / 10,
                     scheduler.get_last_lr()[0], time.time() - tick)
            running, tick = 0.0, time.time()
    manager.save(step)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--slots", type=int, default=3)
    p.add_argument("--slot-steps", type=int, default=50)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--warmup", type=int, default=20)
    p.add_argument("--seed", type=int, default=321)
    p.add_argument("--out", default=None)
    args = p.parse_args()

    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.WARNING, format="%(message)s")
    box = [args.out or tempfile.mkdtemp(prefix="slots_")] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(box)
    os.makedirs(box[0], exist_ok=True)
    for slot in range(args.slots):
        run_slot(args, slot, box[0])
    dist.barrier()
    if args.out is None and dist.get_rank() == 0:
        shutil.rmtree(box[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
