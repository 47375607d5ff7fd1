import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from reader import open_split
from loading import make_loader


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    model = DDP(nn.Sequential(nn.Linear(14, 32), nn.ReLU(), nn.Linear(32, 3)))
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    train = make_loader(open_split("train", rank, world), 16)
    for epoch in range(4):
        train.sampler.set_epoch(epoch)
        total, n = torch.zeros(()), 0
        for x, y in train:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            total, n = total + loss.detach(), n + len(y)
        if rank == 0:
            print(f"epoch {epoch} loss {float(total) / len(train):.4f} samples {n}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
