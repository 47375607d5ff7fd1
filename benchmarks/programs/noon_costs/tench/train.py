import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from data import Structures, worker_init


class EnergyModel(nn.Module):
    def __init__(self, features=48, width=384):
        super().__init__()
        self.atom = nn.Sequential(nn.Linear(features, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
                                  nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.atom(x).mean((1, 2))


def build_loader(args, dataset):
    sampler = DistributedSampler(dataset, shuffle=True, seed=1)
    loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        sampler=sampler,
        num_workers=args.num_workers,
        worker_init_fn=worker_init,
        multiprocessing_context="spawn",
        drop_last=True,
    )
    return loader, sampler


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--num-workers", type=int, default=1)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    model = DDP(EnergyModel())
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    loader, sampler = build_loader(args, Structures(n=768))
    start = time.time()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for features, energy in loader:
            loss = F.mse_loss(model(features), energy)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        if rank == 0:
            print(f"epoch {epoch} loss {total / len(loader):.5f} elapsed {time.time() - start:.1f}s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
