"""Image-patch classifier; weights leave for the bucket every few steps."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from shipping import Bucket, Shipper


class Patches(Dataset):
    def __init__(self, count, seed):
        gen = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 6, (count,), generator=gen)
        grid = torch.arange(12).float()
        wave = torch.sin(grid[None, :] * (self.y[:, None] + 1) * 0.4)
        self.x = wave[:, None, :, None] * wave[:, None, None, :] + 2.5 * torch.randn(count, 1, 12, 12, generator=gen)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class SmallConv(nn.Module):
    def __init__(self, classes=6):
        super().__init__()
        self.c1 = nn.Conv2d(1, 8, 3, padding=1)
        self.n1 = nn.GroupNorm(2, 8)
        self.c2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.n2 = nn.GroupNorm(4, 16)
        self.fc1 = nn.Linear(16 * 36, 64)
        self.fc2 = nn.Linear(64, classes)

    def forward(self, x):
        x = F.relu(self.n1(self.c1(x)))
        x = F.relu(self.n2(self.c2(x)))
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--ship-every", type=int, default=25)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=43)
    ap.add_argument("--bucket", default=os.path.join(tempfile.gettempdir(), f"bucket-{os.getppid()}"))
    return ap.parse_args()


def evaluate(net, data, rank, world):
    net.eval()
    with torch.no_grad():
        x, y = data.x[rank::world], data.y[rank::world]
        counts = torch.tensor([(net(x).argmax(-1) == y).sum().item(), len(y)])
    dist.all_reduce(counts)
    net.train()
    return counts[0].item() / counts[1].item()


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    train, held = Patches(1600, args.seed), Patches(400, args.seed + 1)
    sampler = DistributedSampler(train, world, rank, seed=args.seed, drop_last=True)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)

    torch.manual_seed(args.seed)
    model = DDP(SmallConv())
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    shipper = Shipper(Bucket(args.bucket)) if rank == 0 else None

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            if shipper and step % args.ship_every == 0:
                shipper.ship(step, model.module)
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        acc = evaluate(model.module, held, rank, world)
        if rank == 0:
            print(f"epoch {epoch} step {step} loss {shown.item() / world:.4f} acc {acc:.3f}", flush=True)

    if shipper:
        print("shipped steps", shipper.finish(), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
