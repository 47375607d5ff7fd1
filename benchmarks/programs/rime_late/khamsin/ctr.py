"""Click-through model on an event stream; the run is counted in steps."""
import argparse
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from stream import EventStream, write_archive

HERE = os.path.dirname(os.path.abspath(__file__))


class CrossNet(nn.Module):
    def __init__(self, fields, layers, hidden):
        super().__init__()
        self.cross = nn.ModuleList(nn.Linear(fields, fields) for _ in range(layers))
        self.deep = nn.Sequential(nn.Linear(fields, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.out = nn.Linear(fields + hidden, 1)

    def forward(self, x):
        c = x
        for layer in self.cross:
            c = x * layer(c) + c
        return self.out(torch.cat([c, self.deep(x)], 1)).squeeze(1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=900)
    p.add_argument("--events", type=int, default=12000)
    p.add_argument("--fields", type=int, default=20)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--buffer", type=int, default=500)
    p.add_argument("--eval-every", type=int, default=150)
    p.add_argument("--archive", default=os.path.join(HERE, "events.npy"))
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        write_archive(args.archive, args.events, args.fields, seed=4)
        write_archive(args.archive + ".test.npy", 2000, args.fields, seed=5)
    dist.barrier()
    torch.manual_seed(17)
    stream = EventStream(args.archive, args.buffer, seed=6, rank=rank, world=world)
    loader = DataLoader(stream, batch_size=args.batch, num_workers=args.workers)
    test = torch.from_numpy(np.load(args.archive + ".test.npy"))[rank::world]
    model = DDP(CrossNet(args.fields, 2, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=args.steps)
    started = time.time()
    for step, (x, y) in zip(range(1, args.steps + 1), loader):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % args.eval_every == 0:
            with torch.no_grad():
                right = ((model.module(test[:, :-1]) > 0) == (test[:, -1] > 0.5)).float().sum()
            counts = torch.stack([right, torch.tensor(float(len(test)))])
            dist.all_reduce(counts)
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f} accuracy {(counts[0] / counts[1]).item():.3f} "
                      f"({step / (time.time() - started):.1f} steps/s)", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
