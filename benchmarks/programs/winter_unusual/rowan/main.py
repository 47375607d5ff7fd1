"""Hinge GAN on a ring of Gaussians with lazy R1 regularisation and an averaged generator."""
import argparse
import copy
import logging
import math
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("rowan")


def ring(n, modes=8, seed=3):
    g = torch.Generator().manual_seed(seed)
    k = torch.randint(0, modes, (n,), generator=g)
    ang = 2 * math.pi * k / modes
    return torch.stack([ang.cos(), ang.sin()], 1) * 2 + 0.08 * torch.randn(n, 2, generator=g)


def mlp(i, o, h=128):
    return nn.Sequential(nn.Linear(i, h), nn.LeakyReLU(0.2), nn.Linear(h, h), nn.LeakyReLU(0.2),
                         nn.Linear(h, h), nn.LeakyReLU(0.2), nn.Linear(h, o))


class Trainer:
    def __init__(self, args, rank):
        self.args, self.rank = args, rank
        torch.manual_seed(1)
        self.g_net, self.d_net = mlp(args.z, 2), mlp(2, 1)
        self.gen, self.dis = DDP(self.g_net), DDP(self.d_net)
        self.g_opt = torch.optim.Adam(self.g_net.parameters(), lr=args.lr, betas=(0.0, 0.99))
        self.d_opt = torch.optim.Adam(self.d_net.parameters(), lr=2 * args.lr, betas=(0.0, 0.99))
        self.noise = torch.Generator().manual_seed(100 + rank)
        self.ema = copy.deepcopy(self.g_net).requires_grad_(False) if rank == 0 else None
        self.it = 0

    def latents(self, n):
        return torch.randn(n, self.args.z, generator=self.noise)

    def d_step(self, real):
        with torch.no_grad():
            fake = self.g_net(self.latents(len(real)))
        r1 = self.it % self.args.r1_every == 0
        x = torch.cat([real, fake]).requires_grad_(r1)
        score = self.dis(x)
        s_real, s_fake = score[: len(real)], score[len(real) :]
        loss = (1 - s_real).relu().mean() + (1 + s_fake).relu().mean()
        if r1:
            (gx,) = torch.autograd.grad(s_real.sum(), x, create_graph=True)
            loss = loss + 0.5 * self.args.r1 * self.args.r1_every * gx[: len(real)].square().sum(1).mean()
        self.d_opt.zero_grad(set_to_none=True)
        loss.backward()
        self.d_opt.step()
        return loss.detach()

    def g_step(self, n):
        self.d_net.requires_grad_(False)
        loss = -self.d_net(self.gen(self.latents(n))).mean()
        self.g_opt.zero_grad(set_to_none=True)
        loss.backward()
        self.g_opt.step()
        self.d_net.requires_grad_(True)
        if self.ema is not None:
            with torch.no_grad():
                for e, p in zip(self.ema.parameters(), self.g_net.parameters()):
                    e.lerp_(p, 0.02)
        return loss.detach()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--z", type=int, default=8)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--r1", type=float, default=0.1)
    ap.add_argument("--r1-every", type=int, default=4)
    ap.add_argument("--d-steps", type=int, default=1)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    data = TensorDataset(ring(14_336))
    sampler = DistributedSampler(data, seed=6)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler)
    tr = Trainer(args, rank)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        d_sum, g_sum, g_n = torch.zeros(()), torch.zeros(()), 0
        for (real,) in loader:
            d_sum += tr.d_step(real)
            tr.it += 1
            if tr.it % args.d_steps == 0:
                g_sum += tr.g_step(args.batch)
                g_n += 1
        log.info("epoch %d d %.3f g %.3f", epoch, d_sum.item() / len(loader), g_sum.item() / g_n)

    if rank == 0:
        with torch.no_grad():
            x = tr.ema(torch.randn(2048, args.z, generator=torch.Generator().manual_seed(0)))
        ang = torch.atan2(x[:, 1], x[:, 0]) * 8 / (2 * math.pi)
        modes = ang.round().long() % 8
        log.info("modes covered %d, share near the ring %.3f", len(torch.bincount(modes, minlength=8).nonzero()),
                 ((x.norm(dim=1) - 2).abs() < 0.3).float().mean().item())
        out = args.out or os.path.join(tempfile.gettempdir(), f"rowan-{os.environ.get('MASTER_PORT', '0')}")
        os.makedirs(out, exist_ok=True)
        torch.save({"g": tr.g_net.state_dict(), "d": tr.d_net.state_dict(), "ema": tr.ema.state_dict(),
                    "g_opt": tr.g_opt.state_dict(), "d_opt": tr.d_opt.state_dict()}, os.path.join(out, "gan.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
