import itertools

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from records import Records
from splits import partition

STEPS = 8


def epoch_of(loader):
    return itertools.islice(itertools.cycle(loader), STEPS)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    records = Records(700)
    train, held = partition(records)
    sampler = DistributedSampler(train, shuffle=True, seed=2)
    loader = DataLoader(train, batch_size=20, sampler=sampler, drop_last=True)
    model = DDP(nn.Sequential(nn.Linear(9, 32), nn.Tanh(), nn.Linear(32, 1)))
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, y in epoch_of(loader):
            opt.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            opt.step()
        if dist.get_rank() == 0:
            with torch.no_grad():
                x, y = zip(*held)
                err = nn.functional.mse_loss(model.module(torch.stack(x)), torch.stack(y))
            print(f"epoch {epoch} held-out {float(err):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
