import argparse
import copy
import logging
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from shards import Checkpointer, LocalDisk

log = logging.getLogger("train")


class Ranker(nn.Module):
    def __init__(self, dim=128, width=512):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


class HardPool:
    """Samples which this rank found hard; drawn again with some probability."""

    def __init__(self, capacity, dim):
        self.x = torch.zeros(capacity, dim)
        self.y = torch.zeros(capacity)
        self.size = self.at = 0

    def add(self, x, y):
        for xi, yi in zip(x, y):
            self.x[self.at], self.y[self.at] = xi, yi
            self.at = (self.at + 1) % len(self.x)
            self.size = min(self.size + 1, len(self.x))

    def draw(self, n, gen):
        idx = torch.randint(0, max(self.size, 1), (n,), generator=gen)
        return self.x[idx], self.y[idx]


class Session:
    def __init__(self, args, disk, control):
        self.args, self.disk, self.control = args, disk, control
        self.rank = dist.get_rank()
        torch.manual_seed(args.seed)
        net = Ranker(args.dim)
        self.optimizer = torch.optim.Adam(net.parameters(), lr=args.lr)
        self.pool = HardPool(args.pool if self.rank else args.pool // 16, args.dim)
        self.gen = torch.Generator().manual_seed(args.seed + self.rank)
        self.target = torch.randn(args.dim, generator=torch.Generator().manual_seed(99))
        self.step = 0
        common = torch.tensor(disk.latest())
        dist.all_reduce(common, op=dist.ReduceOp.MIN, group=control)
        found = int(common)
        if found:
            state = disk.read(found)
            net.load_state_dict(state["net"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.pool.__dict__.update(state["pool"])
            self.gen.set_state(state["gen"])
            self.step = state["step"]
        self.model = DDP(net)
        self.saver = Checkpointer(disk)

    def snapshot(self):
        return copy.deepcopy(
            {
                "step": self.step,
                "net": self.model.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "pool": self.pool.__dict__,
                "gen": self.gen.get_state(),
            }
        )

    def train_step(self):
        x = torch.randn(self.args.batch, self.args.dim, generator=self.gen)
        y = torch.sign(x @ self.target)
        hx, hy = self.pool.draw(self.args.batch // 4, self.gen)
        scores = self.model(torch.cat([x, hx]))
        loss = F.softplus(-scores * torch.cat([y, hy]))
        self.optimizer.zero_grad()
        loss.mean().backward()
        self.optimizer.step()
        worst = loss[: len(x)].detach().topk(8).indices
        self.pool.add(x[worst], y[worst])
        self.step += 1
        return loss.mean().item()

    def run(self, until, preempted_at=None):
        while self.step < until:
            loss = self.train_step()
            if self.step % 10 == 0 and self.rank == 0:
                log.info("step %d loss %.4f", self.step, loss)
            if self.step % self.args.save_every == 0:
                self.saver.save(self.step, self.snapshot())
            if preempted_at is not None and self.step >= preempted_at:
                log.info("preemption notice at step %d", self.step)
                self.saver.close(drain=False)
                return
        self.saver.close(drain=True)
        dist.barrier(group=self.control)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--save-every", type=int, default=15)
    p.add_argument("--preempt-at", type=int, default=66)
    p.add_argument("--batch", type=int, default=160)
    p.add_argument("--dim", type=int, default=128)
    p.add_argument("--pool", type=int, default=60000)
    p.add_argument("--bandwidth-mb", type=float, default=30)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=4)
    args = p.parse_args()

    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO, format=f"[rank {dist.get_rank()}] %(message)s")
    control = dist.new_group(backend="gloo")
    root = [tempfile.mkdtemp(prefix="ranker-")] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(root)
    disk = LocalDisk(root[0], dist.get_rank(), args.bandwidth_mb)

    Session(args, disk, control).run(args.steps, preempted_at=args.preempt_at)
    session = Session(args, disk, control)
    log.info("restarted at step %d", session.step)
    session.run(args.steps)
    if dist.get_rank() == 0:
        log.info("finished at step %d", session.step)
        shutil.rmtree(root[0], ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
