"""Intent classifier on vendor deliveries."""
import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from feeder import SteadyFeeder
from records import stream, write_delivery

log = logging.getLogger("intent")


class Classifier(nn.Module):
    def __init__(self, dim, hidden=256, classes=5):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes)
        )

    def forward(self, x):
        return self.body(x)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=240)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--dim", type=int, default=24)
    p.add_argument("--per-part", type=int, default=4000)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--out", default=f"/tmp/intent-{os.environ.get('MASTER_PORT', os.getpid())}")
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"[{rank}] %(name)s %(message)s")

    if rank == 0:
        write_delivery(args.out, world + 1, args.per_part, args.dim, seed=12)
    dist.barrier()
    paths = [os.path.join(args.out, f"part-{i:03d}.jsonl") for i in range(world + 1)]
    feeder = SteadyFeeder(stream([paths[rank]], args.batch))
    val_x, val_y = next(stream([paths[world]], 1000))

    torch.manual_seed(0)
    model = DDP(Classifier(args.dim))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, args.steps)

    for step in range(1, args.steps + 1):
        x, y = feeder.next()
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if step % 40 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            model.eval()
            with torch.no_grad():
                acc = (model.module(val_x).argmax(1) == val_y).float().mean()
            model.train()
            if rank == 0:
                log.info("step %3d  loss %.4f  held-out accuracy %.3f", step, mean.item() / world, acc.item())

    if rank == 0:
        torch.save(model.module.state_dict(), os.path.join(args.out, "intent.pt"))
        log.info("saved")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
