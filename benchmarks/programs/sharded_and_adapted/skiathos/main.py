"""Training with a sharded optimizer that is interrupted in the middle of an epoch and resumed.

The first session stops after a number of steps, the second one builds everything
anew, restores the checkpoint and continues with the next unseen batch.
"""
import argparse
import os
import tempfile
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler

import checkpoint


@dataclass
class Job:
    folder: str
    epochs: int = 3
    batch: int = 32
    stop_after: int = 43
    lr: float = 5e-3
    seed: int = 23


class ResumableSampler(Sampler):
    """Shuffled, split over processes, can start inside an epoch."""

    def __init__(self, size, rank, world, seed):
        self.size, self.rank, self.world, self.seed = size, rank, world, seed
        self.epoch, self.skip = 0, 0

    def begin(self, epoch, skip=0):
        self.epoch, self.skip = epoch, skip

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed * 7919 + self.epoch)
        order = torch.randperm(self.size, generator=g)[self.rank::self.world]
        return iter(order[self.skip:].tolist())

    def __len__(self):
        return self.size // self.world - self.skip


class Sequences(Dataset):
    """Parity-like labels over binary strings with a few distracting bits."""

    def __init__(self, n, seed, length=14):
        g = torch.Generator().manual_seed(seed)
        self.bits = torch.randint(0, 2, (n, length), generator=g).float()
        self.y = (self.bits[:, 2] + self.bits[:, 5]).long() % 2

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"uid": i, "x": self.bits[i] * 2 - 1, "y": self.y[i]}


class Net(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(14, width), nn.GELU(), nn.Dropout(0.05),
                                 nn.Linear(width, width), nn.GELU(), nn.Linear(width, 2))

    def forward(self, x):
        return self.net(x)


class Session:
    def __init__(self, job):
        self.job = job
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(job.seed)
        self.model = DDP(Net())
        torch.manual_seed(job.seed + 1 + self.rank)
        self.optimizer = ZeroRedundancyOptimizer(self.model.parameters(), optimizer_class=torch.optim.AdamW,
                                                 lr=job.lr, weight_decay=1e-3)
        self.data = Sequences(1536, seed=1)
        self.sampler = ResumableSampler(len(self.data), self.rank, self.world, job.seed)
        self.loader = DataLoader(self.data, batch_size=job.batch, sampler=self.sampler,
                                 generator=torch.Generator().manual_seed(job.seed + 2))
        self.per_epoch = len(self.data) // (self.world * job.batch)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=job.lr, total_steps=self.per_epoch * job.epochs, cycle_momentum=False)
        self.step = 0
        self.path = os.path.join(job.folder, "state.pt")

    def restore(self):
        self.step = checkpoint.load(self.path, self.model, self.optimizer, self.scheduler)["step"]
        if self.rank == 0:
            print(f"resumed at step {self.step} (epoch {self.step // self.per_epoch}, "
                  f"batch {self.step % self.per_epoch})", flush=True)

    def run(self, limit=None):
        while self.step < self.per_epoch * self.job.epochs:
            epoch, inside = divmod(self.step, self.per_epoch)
            self.sampler.begin(epoch, skip=inside * self.job.batch)
            running = torch.zeros(2)
            for batch in self.loader:
                loss = F.cross_entropy(self.model(batch["x"]), batch["y"])
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.scheduler.step()
                self.step += 1
                running += torch.tensor([loss.item(), 1.0])
                if self.step == limit:
                    checkpoint.save(self.path, self.model, self.optimizer, self.scheduler, {"step": self.step})
                    return
            dist.all_reduce(running)
            self.evaluate(epoch, running[0] / running[1])

    @torch.no_grad()
    def evaluate(self, epoch, loss):
        self.model.eval()
        test = Sequences(500, seed=2)
        mine = slice(self.rank, None, self.world)
        hits = (self.model.module(test.bits[mine] * 2 - 1).argmax(1) == test.y[mine])
        pair = torch.tensor([hits.sum().item(), hits.numel()])
        dist.all_reduce(pair)
        self.model.train()
        if self.rank == 0:
            print(f"epoch {epoch} loss {loss:.4f} accuracy {pair[0].item() / pair[1].item():.4f}", flush=True)


def shared_folder():
    holder = [tempfile.mkdtemp(prefix="skiathos_") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(holder, src=0)
    return holder[0]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--stop-after", type=int, default=Job.stop_after)
    ap.add_argument("--epochs", type=int, default=Job.epochs)
    ns = ap.parse_args()
    dist.init_process_group("gloo")
    job = Job(folder=shared_folder(), stop_after=ns.stop_after, epochs=ns.epochs)
    if ns.stop_after > 0:
        Session(job).run(limit=job.stop_after)
        second = Session(job)
        second.restore()
    else:
        second = Session(job)
    second.run()
    total = sum(p.double().abs().sum().item() for p in second.model.parameters())
    if dist.get_rank() == 0:
        print(f"finished after {second.step} steps, weight sum {total:.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
