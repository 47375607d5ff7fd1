"""Trains until done, or until the scheduler announces the end of the allocation."""
import argparse
import os
import signal
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


class Allocation:
    """Stands in for the batch system: warns the first task of the node ahead of time."""

    def __init__(self, local_rank, seconds):
        if local_rank == 0:
            timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGUSR1))
            timer.daemon = True
            timer.start()


class Preemption:
    def __init__(self):
        self.requested = False
        signal.signal(signal.SIGUSR1, self._notice)

    def _notice(self, signum, frame):
        print(f"pid {os.getpid()} got {signal.Signals(signum).name}, stopping after this step", flush=True)
        self.requested = True

    def should_stop(self):
        flag = torch.tensor(int(self.requested))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
        self.model = DistributedDataParallel(net)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.preemption = Preemption()
        self.step = 0

    def save(self):
        if self.rank == 0:
            target = Path(self.args.out)
            target.mkdir(exist_ok=True)
            torch.save({"step": self.step, "model": self.model.module.state_dict()}, target / "last.pt")

    def train_step(self):
        gen = torch.Generator().manual_seed(self.step * 10 + self.rank)
        x = torch.randn(32, 16, generator=gen)
        self.opt.zero_grad()
        loss = (self.model(x) - x.roll(1, dims=1)).square().mean()
        loss.backward()
        self.opt.step()
        return loss.detach()

    def fit(self):
        while self.step < self.args.steps:
            loss = self.train_step()
            self.step += 1
            threading.Event().wait(self.args.pace)
            if self.preemption.should_stop():
                self.save()
                print(f"[{self.rank}] preempted at step {self.step}, loss {loss:.3f}", flush=True)
                return False
        self.save()
        return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pace", type=float, default=0.01)
    parser.add_argument("--warn-after", type=float, default=1.5)
    parser.add_argument("--out", default="alder_run")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    trainer = Trainer(args)
    Allocation(int(os.environ["LOCAL_RANK"]), args.warn_after)
    finished = trainer.fit()
    if not finished:
        sys.exit(0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
