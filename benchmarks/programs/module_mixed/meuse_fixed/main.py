import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from clouds import PointClouds

EPOCHS, BATCH, WORKERS = 2, 10, 2


class PointNet(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(3, d), nn.ReLU(), nn.Linear(d, d))
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(d, 3))

    def forward(self, x):
        return self.head(self.point(x).max(1).values)


def seed_worker(worker_id):
    s = torch.initial_seed() % 2 ** 32
    np.random.seed(s)
    random.seed(s)
    torch.utils.data.get_worker_info().dataset.rng = np.random.default_rng(torch.initial_seed())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(11)
    model = DDP(PointNet())
    torch.manual_seed(11 + rank)
    ds = PointClouds(seed=11)
    sampler = DistributedSampler(ds, seed=11)
    loader = DataLoader(ds, batch_size=BATCH, sampler=sampler, num_workers=WORKERS, worker_init_fn=seed_worker,
                        drop_last=True)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for cloud, kind in loader:
            loss = F.cross_entropy(model(cloud), kind)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
