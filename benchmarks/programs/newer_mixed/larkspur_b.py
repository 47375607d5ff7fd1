"""Training that survives a preemption in the middle of an epoch: stop, reload, go on."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

N, BATCH = 240, 10


def dataset():
    g = torch.Generator().manual_seed(8)
    x = torch.randn(N, 9, generator=g)
    y = (x * torch.arange(9.0)).sum(1, keepdim=True) / 10
    return x, y


class Preempted(Exception):
    pass


class Trainer:
    def __init__(self, path, epochs, stop_at=None):
        self.path, self.epochs, self.stop_at = path, epochs, stop_at
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(123)
        self.x, self.y = dataset()
        self.model = DDP(nn.Sequential(nn.Linear(9, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 1)))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=5e-3)
        self.epoch, self.done, self.step = 0, 0, 0
        self.used = []
        self.epoch_rng = None

    def save(self):
        if self.rank == 0:
            torch.save({
                "model": self.model.module.state_dict(), "opt": self.opt.state_dict(),
                "epoch": self.epoch, "done": self.done, "step": self.step,
                "rng": self.epoch_rng,
            }, self.path)
        dist.barrier()

    def resume(self):
        s = torch.load(self.path, weights_only=False)
        self.model.module.load_state_dict(s["model"])
        self.opt.load_state_dict(s["opt"])
        self.epoch, self.done, self.step = s["epoch"], s["done"], s["step"]
        torch.set_rng_state(s["rng"])

    def batches(self):
        order = torch.randperm(N)[self.rank::self.world]
        for at in range(self.done * BATCH, len(order), BATCH):
            yield order[at:at + BATCH]

    def fit(self):
        while self.epoch < self.epochs:
            self.epoch_rng = torch.get_rng_state()
            for pick in self.batches():
                loss = (self.model(self.x[pick]) - self.y[pick]).square().mean()
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                self.used.append((self.epoch, pick))
                self.step += 1
                self.done += 1
                if self.step == self.stop_at:
                    self.save()
                    raise Preempted(self.step)
            self.epoch, self.done = self.epoch + 1, 0
            if self.rank == 0:
                print(f"epoch {self.epoch} step {self.step} loss {loss.item():.4f}", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--preempt-at", type=int, default=19)
    args = p.parse_args()
    dist.init_process_group("gloo")
    path = [os.path.join(tempfile.mkdtemp(prefix="larkspur_"), "state.pt") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(path, src=0)
    first = Trainer(path[0], args.epochs, args.preempt_at)
    try:
        first.fit()
    except Preempted as stop:
        if dist.get_rank() == 0:
            print(f"preempted at step {stop}, starting over from the file", flush=True)
    second = Trainer(path[0], args.epochs)
    second.resume()
    second.fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
