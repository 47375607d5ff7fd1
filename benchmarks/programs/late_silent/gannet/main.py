"""Image classification with repeated augmentation across workers (as in DeiT's RASampler).

Every worker is given the same pictures in a step, each sees them through other augmentations.
"""
import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler


class Glyphs(Dataset):
    def __init__(self, n, seed, rank):
        g = torch.Generator().manual_seed(seed)
        self.proto = (torch.rand(6, 14, 14, generator=torch.Generator().manual_seed(5)) > 0.6).float()
        self.y = torch.randint(0, 6, (n,), generator=g)
        self.noise = torch.randn(n, 14, 14, generator=g) * 0.5
        self.seed, self.rank, self.epoch = seed, rank, 0

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(((self.seed * 97 + self.epoch) * 4096 + i) * 16 + self.rank)
        img = F.pad((self.proto[self.y[i]] + self.noise[i])[None], (2, 2, 2, 2))
        dy, dx = torch.randint(0, 5, (2,), generator=g).tolist()
        img = img[:, dy:dy + 14, dx:dx + 14]
        return img * (0.8 + 0.4 * torch.rand((), generator=g)), self.y[i]


class SharedOrder(Sampler):
    """All ranks walk the same permutation; `take` rows of it make an epoch."""

    def __init__(self, size, take, seed):
        self.size, self.take, self.seed, self.epoch = size, take, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.take

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(torch.randperm(self.size, generator=g)[:self.take].tolist())


class ConvNet(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(1, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(12, 24, 3, padding=1), nn.GroupNorm(3, 24), nn.ReLU(), nn.AdaptiveAvgPool2d(3),
                         nn.Flatten(), nn.Dropout(0.1), nn.Linear(24 * 9, 6))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--seed", type=int, default=13)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed + rank)
    data = Glyphs(960, args.seed, rank)
    sampler = SharedOrder(len(data), len(data) // world, args.seed)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    net = DDP(ConvNet())
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        data.epoch = epoch
        s = torch.zeros(3)
        for x, y in loader:
            logits = net(x)
            loss = F.cross_entropy(logits, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            s += torch.tensor([loss.item() * len(y), (logits.argmax(1) == y).sum().item(), len(y)])
        dist.all_reduce(s)
        if rank == 0:
            print(f"epoch {epoch} loss {s[0] / s[2]:.4f} acc {s[1] / s[2]:.3f}", flush=True)
            args.out.mkdir(parents=True, exist_ok=True)
            torch.save(net.module.state_dict(), args.out / "glyphs.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
