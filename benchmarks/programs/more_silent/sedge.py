"""Streamed shards over ranks and workers, stopped in the middle of an epoch and continued in the same process."""
import copy
import itertools
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class ShardStream(IterableDataset):
    """16 shards of 30 rows; shard order changes with the epoch, every shard goes to exactly one reader."""

    def __init__(self, rank, world, shards=16, rows=30):
        self.rank, self.world, self.shards, self.rows, self.epoch = rank, world, shards, rows, 0

    def __iter__(self):
        info = get_worker_info()
        workers, wid = (info.num_workers, info.id) if info else (1, 0)
        order = torch.randperm(self.shards, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        for shard in order[self.rank * workers + wid::self.world * workers]:
            g = torch.Generator().manual_seed(10_000 + shard)
            x = torch.randn(self.rows, 10, generator=g)
            y = (x[:, :5].sum(1) > x[:, 5:].prod(1)).long()
            for i in torch.randperm(self.rows, generator=g).tolist():
                yield x[i], y[i]


class Run:
    PATH = "sedge_rank{}.pt"

    def __init__(self):
        self.rank = dist.get_rank()
        torch.manual_seed(80 + self.rank)
        self.stream = ShardStream(self.rank, dist.get_world_size())
        self.loader = DataLoader(self.stream, batch_size=10, num_workers=2)
        self.net = DDP(nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 2)))
        self.ema = copy.deepcopy(self.net.module).requires_grad_(False)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=3e-3)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, lambda s: min(1.0, (s + 1) / 20))
        self.epoch, self.in_epoch, self.step = 0, 0, 0

    def parts(self):
        return {"net": self.net.module, "ema": self.ema, "opt": self.opt, "sched": self.sched}

    def save(self):
        state = {k: v.state_dict() for k, v in self.parts().items()}
        state |= {"epoch": self.epoch, "in_epoch": self.in_epoch, "step": self.step, "rng": torch.get_rng_state()}
        torch.save(state, self.PATH.format(self.rank))

    def load(self):
        state = torch.load(self.PATH.format(self.rank))
        for k, v in self.parts().items():
            v.load_state_dict(state[k])
        self.epoch, self.in_epoch, self.step = state["epoch"], state["in_epoch"], state["step"]
        self.rng = state["rng"]

    def train(self, stop_at):
        while self.step < stop_at:
            self.stream.epoch = self.epoch
            batches = itertools.islice(self.loader, self.in_epoch, None)     # rows we had before are skipped
            if getattr(self, "rng", None) is not None:
                torch.set_rng_state(self.rng)
                self.rng = None
            for x, y in batches:
                self.update(x, y)
                if self.step == stop_at:
                    return
            self.epoch, self.in_epoch = self.epoch + 1, 0

    def update(self, x, y):
        loss = F.cross_entropy(self.net(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.sched.step()
        for e, p in zip(self.ema.parameters(), self.net.module.parameters()):
            e.lerp_(p.detach(), 0.05)
        self.step += 1
        self.in_epoch += 1
        if self.rank == 0 and self.step % 20 == 0:
            print(f"step {self.step} (epoch {self.epoch}, batch {self.in_epoch}): {loss.item():.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    run = Run()
    run.train(stop_at=41)
    run.save()
    dist.barrier()
    resumed = Run()
    resumed.load()
    resumed.train(stop_at=90)
    os.remove(Run.PATH.format(dist.get_rank()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
