from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class AverageMeter:
    total: float = 0.0
    count: int = 0
    history: list = field(default_factory=list)

    def update(self, value, n):
        self.total += value * n
        self.count += n

    @property
    def avg(self):
        return self.total / max(self.count, 1)


def signals(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 14, generator=g)
    w = torch.randn(14, 1, generator=torch.Generator().manual_seed(0))
    noise = torch.linspace(0.0, 3.0, n)[:, None] * torch.randn(n, 1, generator=g)
    return TensorDataset(x, torch.tanh(x @ w) + noise)


class Experiment:
    def __init__(self, epochs=8, batch=16, lr=0.05):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.epochs = epochs
        torch.manual_seed(13)
        self.net = DDP(nn.Sequential(nn.Linear(14, 24), nn.Tanh(), nn.Linear(24, 1)))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=lr, momentum=0.9)
        self.scheduler = ReduceLROnPlateau(self.optimizer, factor=0.3, patience=0, threshold=0.02)
        train, val = signals(256, 1), signals(128, 2)
        self.sampler = DistributedSampler(train)
        self.train_loader = DataLoader(train, batch, sampler=self.sampler)
        per_rank = len(val) // self.world
        self.val_loader = DataLoader(Subset(val, range(self.rank * per_rank, (self.rank + 1) * per_rank)), 32)
        self.criterion = nn.MSELoss()

    def train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        self.net.train()
        for x, y in self.train_loader:
            self.optimizer.zero_grad(set_to_none=True)
            self.criterion(self.net(x), y).backward()
            self.optimizer.step()

    @torch.no_grad()
    def evaluate(self):
        self.net.eval()
        meter = AverageMeter()
        for x, y in self.val_loader:
            meter.update(self.criterion(self.net.module(x), y).item(), len(x))
        return meter.avg

    def global_average(self, value):
        t = torch.tensor(value)
        dist.all_reduce(t)
        return t.item() / self.world

    def run(self):
        for epoch in range(self.epochs):
            self.train_epoch(epoch)
            val_loss = self.evaluate()
            avg_loss = self.global_average(val_loss)
            self.scheduler.step(avg_loss)
            if self.rank == 0:
                lr = self.optimizer.param_groups[0]["lr"]
                print(f"epoch {epoch} val {avg_loss:.4f} lr {lr:.5f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Experiment().run()
    dist.destroy_process_group()
