"""Hinge GAN with a two-critic ensemble and gradient accumulation on both sides."""
import argparse
import contextlib
import logging
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

log = logging.getLogger("gan")


def generator(z, ch):
    return nn.Sequential(
        nn.ConvTranspose2d(z, 4 * ch, 4), nn.GroupNorm(4, 4 * ch), nn.ReLU(),
        nn.ConvTranspose2d(4 * ch, 2 * ch, 4, 2, 1), nn.GroupNorm(4, 2 * ch), nn.ReLU(),
        nn.ConvTranspose2d(2 * ch, ch, 4, 2, 1), nn.GroupNorm(4, ch), nn.ReLU(),
        nn.ConvTranspose2d(ch, 3, 4, 2, 1), nn.Tanh())


def critic(ch, stride):
    return nn.Sequential(
        nn.Conv2d(3, ch, 5, stride, 2), nn.LeakyReLU(0.2),
        nn.Conv2d(ch, 2 * ch, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8 * ch, 1))


class Blobs:
    def __init__(self, seed, size=32):
        self.gen = torch.Generator().manual_seed(seed)
        ax = torch.linspace(-1, 1, size)
        self.yy, self.xx = torch.meshgrid(ax, ax, indexing="ij")

    def draw(self, n):
        c = torch.rand(n, 2, 1, 1, generator=self.gen) - 0.5
        r = torch.rand(n, 1, 1, generator=self.gen) * 0.3 + 0.2
        d = torch.exp(-((self.xx - c[:, 0]) ** 2 + (self.yy - c[:, 1]) ** 2) / r ** 2)
        hue = torch.rand(n, 3, 1, 1, generator=self.gen)
        return hue * d[:, None] * 2 - 1


@contextlib.contextmanager
def accumulate(models, last):
    """Reduce gradients of all given models only with the last micro-batch."""
    with contextlib.ExitStack() as stack:
        if not last:
            for m in models:
                stack.enter_context(m.no_sync())
        yield


def set_trainable(models, flag):
    for m in models:
        for p in m.parameters():
            p.requires_grad_(flag)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=40)
    ap.add_argument("--accum", type=int, default=3)
    ap.add_argument("--micro", type=int, default=8)
    ap.add_argument("--critic-steps", type=int, default=2)
    ap.add_argument("--z", type=int, default=32)
    ap.add_argument("--ch", type=int, default=12)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    gen = DDP(generator(args.z, args.ch))
    critics = [DDP(critic(args.ch, s)) for s in (1, 2)]
    g_opt = torch.optim.Adam(gen.parameters(), lr=2e-4, betas=(0.0, 0.9))
    d_opt = torch.optim.Adam([p for c in critics for p in c.parameters()], lr=4e-4, betas=(0.0, 0.9))
    data = Blobs(30 + rank)
    torch.manual_seed(60 + rank)

    t0 = time.perf_counter()
    for rnd in range(1, args.rounds + 1):
        for _ in range(args.critic_steps):
            for k in range(args.accum):
                with torch.no_grad():
                    fake = gen(torch.randn(args.micro, args.z, 1, 1))
                both = torch.cat([data.draw(args.micro), fake])
                with accumulate(critics, k == args.accum - 1):
                    d_loss = 0.0
                    for c in critics:
                        real_s, fake_s = c(both).chunk(2)
                        d_loss = d_loss + F.relu(1 - real_s).mean() + F.relu(1 + fake_s).mean()
                    (d_loss / args.accum).backward()
            d_opt.step()
            d_opt.zero_grad(set_to_none=True)
        set_trainable(critics, False)
        for k in range(args.accum):
            with accumulate([gen], k == args.accum - 1):
                fake = gen(torch.randn(args.micro, args.z, 1, 1))
                g_loss = -sum(c.module(fake).mean() for c in critics)
                (g_loss / args.accum).backward()
        set_trainable(critics, True)
        g_opt.step()
        g_opt.zero_grad(set_to_none=True)
        if rank == 0 and rnd % 10 == 0:
            log.info("round %d critic %.4f generator %.4f %.0f ms/round", rnd, d_loss.item(), g_loss.item(),
                     100 * (time.perf_counter() - t0))
            t0 = time.perf_counter()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
