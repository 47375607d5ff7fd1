import dataclasses
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


@dataclasses.dataclass
class Config:
    lr: float = 0.05
    epochs: int = 14
    batch: int = 32
    patience: int = 0
    factor: float = 0.5
    n_train: int = 1024
    n_val: int = 192


def make_split(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=g)
    w = torch.linspace(-1, 1, 12)
    y = (x @ w).unsqueeze(1) + 0.8 * torch.randn(n, 1, generator=g)
    return TensorDataset(x, y)


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        self.model = DDP(net)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=cfg.lr, momentum=0.9)
        self.sched = ReduceLROnPlateau(self.opt, patience=cfg.patience, factor=cfg.factor, threshold=1e-3)
        train, val = make_split(cfg.n_train, 1), make_split(cfg.n_val, 2)
        self.sampler = DistributedSampler(train, shuffle=True)
        self.train_loader = DataLoader(train, cfg.batch, sampler=self.sampler, drop_last=True)
        self.val_loader = DataLoader(val, cfg.batch, sampler=DistributedSampler(val, shuffle=False))

    def train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        self.model.train()
        for x, y in self.train_loader:
            self.opt.zero_grad(set_to_none=True)
            nn.functional.mse_loss(self.model(x), y).backward()
            self.opt.step()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        acc = torch.zeros(2)
        for x, y in self.val_loader:
            acc[0] += nn.functional.mse_loss(self.model(x), y, reduction="sum")
            acc[1] += len(x)
        dist.all_reduce(acc)
        return (acc[0] / acc[1]).item()

    def fit(self):
        for epoch in range(self.cfg.epochs):
            self.train_epoch(epoch)
            val_loss = self.validate()
            self.sched.step(val_loss)
            if self.rank == 0:
                print(f"epoch {epoch:02d} val {val_loss:.4f} lr {self.opt.param_groups[0]['lr']:.5f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Trainer(Config()).fit()
    dist.barrier()
    dist.destroy_process_group()
