"""Trains a small diffusion model of 2-D points; the averaged weights are folded back now and then."""
import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class ShadowWeights:
    """Exponential moving average of the weights, kept by name."""

    def __init__(self, model, beta=0.98, update_after=10, update_every=2):
        self.beta = beta
        self.update_after = update_after
        self.update_every = update_every
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model, step):
        if step % self.update_every:
            return
        if step <= self.update_after:
            for n, p in model.named_parameters():
                self.shadow[n].copy_(p)
            return
        for n, p in model.named_parameters():
            self.shadow[n].lerp_(p, 1 - self.beta)

    @torch.no_grad()
    def copy_to(self, model):
        for n, p in model.named_parameters():
            p.copy_(self.shadow[n])


class Denoiser(nn.Module):
    def __init__(self, width=192, depth=4, freqs=16):
        super().__init__()
        self.register_buffer("freqs", torch.exp(torch.linspace(0, math.log(200.0), freqs)))
        self.inp = nn.Linear(2 + 2 * freqs, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )
        self.out = nn.Linear(width, 2)

    def forward(self, x, t):
        emb = t[:, None] * self.freqs
        h = self.inp(torch.cat([x, emb.sin(), emb.cos()], 1))
        for blk in self.blocks:
            h = h + blk(h)
        return self.out(h)


def moons(n, g):
    a = torch.rand(n, generator=g) * math.pi
    side = torch.randint(0, 2, (n,), generator=g).float()
    x = torch.cos(a) * (1 - 2 * side) + side
    y = torch.sin(a) * (1 - 2 * side) + side * 0.5
    return torch.stack([x, y], 1) * 1.2 + 0.03 * torch.randn(n, 2, generator=g)


def noise_loss(net, x0, g):
    t = torch.rand(len(x0), generator=g)
    signal = torch.cos(t * math.pi / 2)[:, None]
    sigma = torch.sin(t * math.pi / 2)[:, None]
    eps = torch.randn(x0.shape, generator=g)
    return ((net(signal * x0 + sigma * eps, t) - eps) ** 2).mean()


@torch.no_grad()
def heldout(model, world):
    g = torch.Generator().manual_seed(99)
    total = torch.stack([noise_loss(model, moons(512, g), g) for _ in range(4)]).mean()
    dist.all_reduce(total)
    return total.item() / world


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=320)
    ap.add_argument("--batch", type=int, default=512)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--fold-every", type=int, default=40, help="steps between copies of the average into the model")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Denoiser()
    ema = ShadowWeights(model)
    ddp = DDP(model)
    opt = torch.optim.Adam(ddp.parameters(), lr=args.lr)
    g = torch.Generator().manual_seed(1000 + rank)

    for step in range(1, args.steps + 1):
        loss = noise_loss(ddp, moons(args.batch, g), g)
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update(model, step)
        if step % args.fold_every == 0:
            ema.copy_to(model)
            val = heldout(model, world)
            if rank == 0:
                print(f"step {step} train {loss.item():.4f} heldout {val:.4f}", flush=True)

    if rank == 0:
        out = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"moons_{os.getpid()}.pt")
        torch.save(ema.shadow, out)
        os.remove(out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
