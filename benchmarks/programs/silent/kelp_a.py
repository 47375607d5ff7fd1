import contextlib
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class Config:
    epochs: int = 9
    micro_batch: int = 4
    accum: int = 4
    lr: float = 0.05


class Accumulator:
    def __init__(self, model, accum, num_batches):
        self.model, self.accum, self.num_batches = model, accum, num_batches

    def window_size(self, i):
        first = i - i % self.accum
        return min(self.accum, self.num_batches - first)

    def should_step(self, i):
        return (i + 1) % self.accum == 0 or i + 1 == self.num_batches

    def context(self, i):
        sync = self.should_step(i)
        return contextlib.nullcontext() if sync else self.model.no_sync()


class Task:
    def __init__(self, cfg):
        self.cfg = cfg
        g = torch.Generator().manual_seed(60)
        x = torch.randn(80, 7, generator=g)
        self.ds = TensorDataset(x, x[:, :1] * x[:, 1:2] + x[:, 2:3])
        self.sampler = DistributedSampler(self.ds)
        self.loader = DataLoader(self.ds, cfg.micro_batch, sampler=self.sampler)
        torch.manual_seed(61)
        self.model = DDP(nn.Sequential(nn.Linear(7, 24), nn.Tanh(), nn.Linear(24, 1)))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=cfg.lr, momentum=0.9)
        self.acc = Accumulator(self.model, cfg.accum, len(self.loader))

    def epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        total = torch.zeros(())
        self.opt.zero_grad(set_to_none=True)
        for i, (x, y) in enumerate(self.loader):
            with self.acc.context(i):
                loss = F.mse_loss(self.model(x), y)
                (loss / self.acc.window_size(i)).backward()
            total += loss.detach()
            if self.acc.should_step(i):
                self.opt.step()
                self.opt.zero_grad(set_to_none=True)
        dist.all_reduce(total)
        return total.item() / len(self.loader) / dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    task = Task(Config())
    for epoch in range(task.cfg.epochs):
        loss = task.epoch(epoch)
        if dist.get_rank() == 0 and epoch % 3 == 2:
            print(f"epoch {epoch} mse {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
