"""Adversarial training on a ring of blobs, generator and critic with an optimizer each."""
import argparse
import copy
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Ring(Dataset):
    def __init__(self, n, modes=8, seed=0):
        g = torch.Generator().manual_seed(seed)
        k = torch.arange(n) % modes
        a = 2 * math.pi * k / modes
        self.points = torch.stack([a.cos(), a.sin()], 1) * 2 + 0.08 * torch.randn(n, 2, generator=g)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, i):
        return self.points[i]


def block(i, o):
    return [nn.Linear(i, o), nn.LeakyReLU(0.2)]


class Generator(nn.Module):
    def __init__(self, latent, width):
        super().__init__()
        self.latent = latent
        self.net = nn.Sequential(*block(latent, width), *block(width, width), nn.Linear(width, 2))

    def forward(self, z):
        return self.net(z)


class Critic(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(*block(2, width), *block(width, width), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


class Adversarial:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.gen, self.critic = Generator(args.latent, args.width), Critic(args.width)
        self.gen_ddp, self.critic_ddp = DDP(self.gen), DDP(self.critic)
        self.gen_ema = copy.deepcopy(self.gen).requires_grad_(False)
        self.opt_g = torch.optim.Adam(self.gen.parameters(), lr=args.lr, betas=(0.5, 0.99))
        self.opt_c = torch.optim.Adam(self.critic.parameters(), lr=args.lr * 2, betas=(0.5, 0.99))
        self.noise = torch.Generator().manual_seed(args.seed * 1009 + self.rank)

    def latents(self, n):
        return torch.randn(n, self.args.latent, generator=self.noise)

    def critic_step(self, real):
        with torch.no_grad():
            fake = self.gen(self.latents(len(real)))
        scores = self.critic_ddp(torch.cat([real, fake]))
        loss = F.softplus(-scores[: len(real)]).mean() + F.softplus(scores[len(real):]).mean()
        self.opt_c.zero_grad(set_to_none=True)
        loss.backward()
        self.opt_c.step()
        return loss.detach()

    def generator_step(self, n):
        self.critic.requires_grad_(False)
        loss = F.softplus(-self.critic(self.gen_ddp(self.latents(n)))).mean()
        self.opt_g.zero_grad(set_to_none=True)
        loss.backward()
        self.opt_g.step()
        self.critic.requires_grad_(True)
        with torch.no_grad():
            for e, p in zip(self.gen_ema.parameters(), self.gen.parameters()):
                e.lerp_(p, 0.05)
        return loss.detach()

    @torch.no_grad()
    def coverage(self, n=512):
        pts = self.gen_ema(self.latents(n))
        a = 2 * math.pi * torch.arange(8) / 8
        modes = torch.stack([a.cos(), a.sin()], 1) * 2
        near, which = torch.cdist(pts, modes).min(1)
        counts = torch.bincount(which[near < 0.5], minlength=8).float()
        dist.all_reduce(counts)
        return int((counts > 0).sum()), counts.sum().item() / (n * self.world)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--latent", type=int, default=8)
    ap.add_argument("--width", type=int, default=64)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=15)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    data = Ring(1536)
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    adv = Adversarial(args)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        sums = torch.zeros(3)
        for real in loader:
            lc = adv.critic_step(real)
            lg = adv.generator_step(len(real))
            sums += torch.tensor([lc.item(), lg.item(), 1.0])
        dist.all_reduce(sums)
        modes, share = adv.coverage()
        if adv.rank == 0:
            print(f"epoch {epoch} critic {sums[0] / sums[2]:.4f} generator {sums[1] / sums[2]:.4f} "
                  f"modes {modes} on-mode {share:.2f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
