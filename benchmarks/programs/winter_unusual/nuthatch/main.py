"""Keyword spotting on synthetic spectrograms over a thin network link."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from compress import TopKState, topk_hook

log = logging.getLogger("nuthatch")


class Spotter(nn.Module):
    def __init__(self, classes, ch=32):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, ch, 3, stride=2, padding=1), nn.GroupNorm(4, ch), nn.ReLU(),
            nn.Conv2d(ch, ch, 3, stride=2, padding=1), nn.GroupNorm(4, ch), nn.ReLU(),
            nn.Conv2d(ch, 2 * ch, 3, stride=2, padding=1), nn.GroupNorm(4, 2 * ch), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(2 * ch * 9, 128), nn.ReLU(), nn.Linear(128, classes))

    def forward(self, x):
        return self.head(self.features(x))


def spectrograms(n, classes=10, side=24):
    g = torch.Generator().manual_seed(55)
    f0 = torch.rand(classes, generator=g) * 0.8 + 0.2
    f1 = torch.rand(classes, generator=g) * 0.8 + 0.2
    y = torch.randint(0, classes, (n,), generator=g)
    t = torch.arange(side).float()
    phase = torch.rand(n, 2, generator=g) * 6.28
    rows = torch.sin(f0[y][:, None] * t + phase[:, :1])
    cols = torch.sin(f1[y][:, None] * t + phase[:, 1:])
    x = rows[:, :, None] * cols[:, None, :] + 0.7 * torch.randn(n, side, side, generator=g)
    return TensorDataset(x.unsqueeze(1), y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--density", type=float, default=0.02)
    ap.add_argument("--dense-steps", type=int, default=16)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    data = spectrograms(3072)
    sampler = DistributedSampler(data, seed=2)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler)
    torch.manual_seed(0)
    model = DDP(Spotter(10))
    state = TopKState(args.density, args.dense_steps, buckets_per_step=1)
    model.register_comm_hook(state, topk_hook)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.5)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for x, y in loader:
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total[0] += loss.detach() * len(y)
            total[1] += (logits.argmax(1) == y).sum()
        dist.all_reduce(total)
        log.info("epoch %d loss %.4f accuracy %.3f", epoch, *(total / len(data)).tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
