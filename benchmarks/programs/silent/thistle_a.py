import random
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, random_split


@dataclass
class TrainConfig:
    seed: int = 1234
    val_ratio: float = 0.2
    epochs: int = 3
    batch_size: int = 8
    noise: float = 0.05


class Frames(Dataset):
    def __init__(self, n=480, noise=0.0):
        g = torch.Generator().manual_seed(77)
        self.state = torch.randn(n, 10, generator=g)
        self.action = torch.tanh(self.state @ torch.randn(10, 3, generator=g))
        self.noise = noise

    def __len__(self):
        return len(self.state)

    def __getitem__(self, i):
        return self.state[i] + self.noise * torch.randn(10), self.action[i]


def set_seed(seed, rank):
    seed = seed + rank * 12345
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def make_datasets(cfg):
    full = Frames(noise=cfg.noise)
    n_val = int(len(full) * cfg.val_ratio)
    return random_split(full, [len(full) - n_val, n_val])


class Agent:
    def __init__(self, cfg):
        self.cfg = cfg
        self.train_set, self.val_set = make_datasets(cfg)
        self.sampler = DistributedSampler(self.train_set, seed=cfg.seed)
        self.loader = DataLoader(self.train_set, cfg.batch_size, sampler=self.sampler)
        self.val_loader = DataLoader(self.val_set, 16, sampler=DistributedSampler(self.val_set, shuffle=False))
        self.policy = DDP(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3)))
        self.opt = torch.optim.Adam(self.policy.parameters(), lr=3e-3)

    def fit_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        self.policy.train()
        for s, a in self.loader:
            self.opt.zero_grad(set_to_none=True)
            nn.functional.mse_loss(self.policy(s), a).backward()
            self.opt.step()

    @torch.no_grad()
    def validate(self):
        self.policy.eval()
        acc = torch.zeros(2)
        for s, a in self.val_loader:
            acc[0] += nn.functional.mse_loss(self.policy.module(s), a, reduction="sum")
            acc[1] += a.numel()
        dist.all_reduce(acc)
        return (acc[0] / acc[1]).item()


def main():
    cfg = TrainConfig()
    dist.init_process_group("gloo")
    set_seed(cfg.seed, dist.get_rank())
    agent = Agent(cfg)
    for epoch in range(cfg.epochs):
        agent.fit_epoch(epoch)
        mse = agent.validate()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} val mse {mse:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
