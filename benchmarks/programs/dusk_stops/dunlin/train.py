"""ResMLP training that leaves early and saves when the scheduler announces the end of the slot."""
import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from preempt import PreemptionGuard, start_slot_timer

log = logging.getLogger("train")


class ResMLP(nn.Module):
    def __init__(self, dim=256, depth=6, classes=20):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
            for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        for b in self.blocks:
            x = x + b(x)
        return self.head(x)


class Loop:
    def __init__(self, args, rank, world, root):
        self.args, self.rank, self.world, self.root = args, rank, world, root
        torch.manual_seed(0)
        self.model = DDP(ResMLP())
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.guard = PreemptionGuard()
        self.centers = torch.randn(20, 256, generator=torch.Generator().manual_seed(9))
        self.g = torch.Generator().manual_seed(40 + rank)

    def batch(self):
        y = torch.randint(0, 20, (self.args.batch_size,), generator=self.g)
        return self.centers[y] + 2.5 * torch.randn(len(y), 256, generator=self.g), y

    def save(self, step):
        """Called by all ranks: the random states belong to the checkpoint."""
        states = [None] * self.world
        dist.all_gather_object(states, self.g.get_state())
        if self.rank == 0:
            torch.save({"model": self.model.module.state_dict(), "opt": self.opt.state_dict(),
                        "rng": states, "step": step}, os.path.join(self.root, "last.pt"))
            log.info("saved step %d", step)

    def run(self):
        for step in range(1, self.args.steps + 1):
            x, y = self.batch()
            loss = F.cross_entropy(self.model(x), y)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            if self.rank == 0 and step % 50 == 0:
                log.info("step %d loss %.4f", step, loss.item())
            if self.guard.should_stop():
                log.info("leaving at step %d", step)
                break
            if step % self.args.save_every == 0:
                self.save(step)
        self.save(step)
        return step


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20000)
    ap.add_argument("--save-every", type=int, default=100)
    ap.add_argument("--batch-size", type=int, default=48)
    ap.add_argument("--lr", type=float, default=5e-4)
    ap.add_argument("--slot", type=float, default=12.0, help="seconds until the scheduler gives notice")
    ap.add_argument("--out", default=None)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {rank}/{world} %(message)s")
    box = [args.out or (tempfile.mkdtemp(prefix="slot_") if rank == 0 else None)]
    dist.broadcast_object_list(box)
    os.makedirs(box[0], exist_ok=True)

    loop = Loop(args, rank, world, box[0])
    start_slot_timer(args.slot)
    last = loop.run()
    dist.barrier()
    if rank == 0:
        log.info("ended after step %d", last)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
