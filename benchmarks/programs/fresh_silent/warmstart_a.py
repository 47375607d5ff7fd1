import argparse
import math
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FOLDER = Path.cwd() / ("out_" + Path(__file__).stem)


class Digits(Dataset):
    def __init__(self, size=640):
        g = torch.Generator().manual_seed(21)
        self.x = torch.randn(size, 32, generator=g)
        self.y = self.x[:, :10].argmax(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def schedule(total, warmup):
    def factor(step):
        if step < warmup:
            return (step + 1) / warmup
        t = (step - warmup) / max(1, total - warmup)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, t)))

    return factor


def write(path, model, optimizer, scheduler, epoch):
    torch.save(
        {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "epoch": epoch,
        },
        path,
    )


def train_epoch(model, loader, optimizer, scheduler, rank, epoch):
    loader.sampler.set_epoch(epoch)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    if rank == 0:
        print(f"epoch {epoch} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.5f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--until", type=int, default=2)
    parser.add_argument("--checkpoint", default="last.pt")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        if not args.resume:
            shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(exist_ok=True)
    dist.barrier()

    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(32, 96), nn.GELU(), nn.Linear(96, 10)))
    data = Digits()
    loader = DataLoader(data, batch_size=20, sampler=DistributedSampler(data, shuffle=True, seed=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    scheduler = LambdaLR(optimizer, schedule(args.epochs * len(loader), warmup=8))

    start = 0
    if args.resume:
        state = torch.load(FOLDER / args.checkpoint, map_location="cpu", weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        start = state["epoch"]

    end = args.epochs if args.resume else args.until
    for epoch in range(start, end):
        train_epoch(model, loader, optimizer, scheduler, rank, epoch)
        if rank == 0:
            write(FOLDER / args.checkpoint, model, optimizer, scheduler, epoch + 1)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
