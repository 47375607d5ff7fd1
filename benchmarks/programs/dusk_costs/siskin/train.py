"""Monocular depth from procedurally rendered scenes (data-parallel, endless synthetic data)."""
import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from pipeline import Prefetcher, Renderer

log = logging.getLogger("depth")


class DepthNet(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.d1 = nn.Conv2d(3, ch, 3, stride=2, padding=1)
        self.d2 = nn.Conv2d(ch, 2 * ch, 3, stride=2, padding=1)
        self.mid = nn.Sequential(*[nn.Sequential(nn.Conv2d(2 * ch, 2 * ch, 3, padding=1), nn.GELU())
                                   for _ in range(3)])
        self.u1 = nn.ConvTranspose2d(2 * ch, ch, 2, stride=2)
        self.u2 = nn.ConvTranspose2d(ch, 1, 2, stride=2)

    def forward(self, x):
        h1 = F.gelu(self.d1(x))
        h = self.mid(F.gelu(self.d2(h1)))
        return self.u2(F.gelu(self.u1(h) + h1))


def gradient_loss(pred, target):
    dx = (pred - target).diff(dim=-1).abs().mean()
    dy = (pred - target).diff(dim=-2).abs().mean()
    return dx + dy


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=140)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--size", type=int, default=112)
    ap.add_argument("--channels", type=int, default=12)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--log-every", type=int, default=20)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model = DDP(DepthNet(args.channels))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    batches = Prefetcher(Renderer(args.batch, args.size, seed=50 + rank), args.iterations)

    for it, (image, depth) in enumerate(batches, 1):
        pred = model(image)
        loss = F.l1_loss(pred, depth) + 0.5 * gradient_loss(pred, depth)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % args.log_every == 0:
            val = loss.detach().clone()
            dist.all_reduce(val)
            if rank == 0:
                log.info("iter %d/%d loss %.4f", it, args.iterations, val.item() / dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
