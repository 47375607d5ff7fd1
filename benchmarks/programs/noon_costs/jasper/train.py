import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from data import EncodedImages


def convnet(classes=8, c=24):
    def stage(i, o):
        return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(stage(3, c), stage(c, 2 * c), stage(2 * c, 4 * c), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(4 * c, classes))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=14)
    ap.add_argument("--batch-size", type=int, default=24)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(19)
    model = DDP(convnet())
    torch.manual_seed(190 + rank)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    data = EncodedImages()
    sampler = DistributedSampler(data, seed=4)
    loader = DataLoader(data, args.batch_size, sampler=sampler, num_workers=1, persistent_workers=True,
                        prefetch_factor=3, drop_last=True)
    step, t0 = 0, time.time()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} {step / (time.time() - t0):.2f} it/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
