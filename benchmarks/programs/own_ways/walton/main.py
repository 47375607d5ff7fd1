"""Relativistic GAN on a ring of Gaussians."""
import argparse
import copy
import math
import os
import tempfile
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from nets import Critic, Generator


@dataclass
class Cfg:
    steps: int = 120
    batch: int = 64
    critic_steps: int = 2
    lr_g: float = 1e-3
    lr_d: float = 1e-3
    r1: float = 0.05
    ema: float = 0.98
    log_every: int = 20
    seed: int = 31


def read_cfg():
    p = argparse.ArgumentParser()
    for k, v in vars(Cfg()).items():
        p.add_argument("--" + k, type=type(v), default=v)
    return Cfg(**vars(p.parse_args()))


class Ring:
    """Infinite stream; every process draws with its own generator."""

    def __init__(self, rank, seed, modes=8, radius=2.0, spread=0.15):
        self.gen = torch.Generator().manual_seed(seed * 1000 + rank)
        angle = 2 * math.pi * torch.arange(modes) / modes
        self.centres = radius * torch.stack([angle.cos(), angle.sin()], 1)
        self.spread = spread

    def draw(self, n):
        which = torch.randint(len(self.centres), (n,), generator=self.gen)
        return self.centres[which] + self.spread * torch.randn(n, 2, generator=self.gen)

    def noise(self, n, dim):
        return torch.randn(n, dim, generator=self.gen)


class Adversarial:
    def __init__(self, cfg, rank, world):
        self.cfg, self.rank, self.world = cfg, rank, world
        torch.manual_seed(cfg.seed)
        self.g = DDP(Generator())
        self.d = DDP(Critic(), broadcast_buffers=False)
        self.shadow = copy.deepcopy(self.g.module).requires_grad_(False)
        self.opt_g = torch.optim.Adam(self.g.parameters(), lr=cfg.lr_g, betas=(0.5, 0.99))
        self.opt_d = torch.optim.Adam(self.d.parameters(), lr=cfg.lr_d, betas=(0.5, 0.99))
        self.data = Ring(rank, cfg.seed)

    def critic_step(self):
        real = self.data.draw(self.cfg.batch).requires_grad_(True)
        with torch.no_grad():
            fake = self.g.module(self.data.noise(self.cfg.batch, self.g.module.latent))
        score = self.d(torch.cat([real, fake]))
        on_real, on_fake = score.split(self.cfg.batch)
        (grad,) = torch.autograd.grad(on_real.sum(), real, create_graph=True)
        loss = F.softplus(on_fake - on_real).mean() + \
            0.5 * self.cfg.r1 * grad.pow(2).sum(1).mean()
        self.opt_d.zero_grad(set_to_none=True)
        loss.backward()
        self.opt_d.step()
        return loss.item()

    def generator_step(self):
        real = self.data.draw(self.cfg.batch)
        self.d.requires_grad_(False)
        fake = self.g(self.data.noise(self.cfg.batch, self.g.module.latent))
        loss = F.softplus(self.d.module(real) - self.d.module(fake)).mean()
        self.opt_g.zero_grad(set_to_none=True)
        loss.backward()
        self.opt_g.step()
        self.d.requires_grad_(True)
        with torch.no_grad():
            for s, p in zip(self.shadow.parameters(), self.g.module.parameters()):
                s.lerp_(p, 1 - self.cfg.ema)
        return loss.item()

    @torch.no_grad()
    def quality(self, n=256):
        """Share of modes that get samples and mean distance to the nearest mode."""
        gen = torch.Generator().manual_seed(5 + self.rank)
        x = self.shadow.sample(n, gen)
        dist_to = torch.cdist(x, self.data.centres)
        near, which = dist_to.min(1)
        count = torch.bincount(which[near < 3 * self.data.spread],
                               minlength=len(self.data.centres)).float()
        dist.all_reduce(count)
        far = near.mean()
        dist.all_reduce(far)
        return (count > 0).float().mean().item(), far.item() / self.world

    def state(self):
        return {"g": self.g.module.state_dict(), "d": self.d.module.state_dict(),
                "shadow": self.shadow.state_dict(), "opt_g": self.opt_g.state_dict(),
                "opt_d": self.opt_d.state_dict()}


def main():
    cfg = read_cfg()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    gan = Adversarial(cfg, rank, world)
    for step in range(1, cfg.steps + 1):
        for _ in range(cfg.critic_steps):
            loss_d = gan.critic_step()
        loss_g = gan.generator_step()
        if step % cfg.log_every == 0:
            both = torch.tensor([loss_d, loss_g])
            dist.all_reduce(both)
            both /= world
            modes, far = gan.quality()
            if rank == 0:
                print(f"step {step:4d} critic {both[0]:.4f} generator {both[1]:.4f} "
                      f"modes {modes:.2f} distance {far:.3f}", flush=True)
    if rank == 0:
        path = os.path.join(tempfile.mkdtemp(prefix="ring_"), "gan.pt")
        torch.save(gan.state(), path)
        print(f"saved {path}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
