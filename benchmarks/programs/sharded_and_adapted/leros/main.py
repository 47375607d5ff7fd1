"""Conditional GAN on a ring of Gaussians, distributed over processes."""
import argparse
import math
import os
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from networks import Critic, Generator, WeightAverage, hinge_critic, hinge_generator


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=140)
    ap.add_argument("--critic-steps", type=int, default=2)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--lr-g", type=float, default=1e-3)
    ap.add_argument("--lr-d", type=float, default=2e-3)
    ap.add_argument("--ema", type=float, default=0.95)
    ap.add_argument("--seed", type=int, default=3)
    ap.add_argument("--samples", default="runs/leros")
    return ap.parse_args()


class Ring:
    def __init__(self, modes, seed):
        self.modes = modes
        self.g = torch.Generator().manual_seed(seed)

    def draw(self, n):
        c = torch.randint(0, self.modes, (n,), generator=self.g)
        angle = 2 * math.pi * c / self.modes
        centre = torch.stack([angle.cos(), angle.sin()], dim=1) * 2
        return centre + 0.15 * torch.randn(n, 2, generator=self.g), c


@contextmanager
def frozen(module):
    for p in module.parameters():
        p.requires_grad_(False)
    yield module
    for p in module.parameters():
        p.requires_grad_(True)


class GANTrainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.generator = DDP(Generator())
        self.z_dim = self.generator.module.z_dim
        self.critic = DDP(Critic())
        self.average = WeightAverage(self.generator.module, args.ema)
        self.opt_g = torch.optim.Adam(self.generator.parameters(), lr=args.lr_g, betas=(0.0, 0.9))
        self.opt_d = torch.optim.Adam(self.critic.parameters(), lr=args.lr_d, betas=(0.0, 0.9))
        self.ring = Ring(4, seed=args.seed + 100 * (self.rank + 1))
        self.noise = torch.Generator().manual_seed(args.seed + 500 + self.rank)

    def latent(self, n):
        return torch.randn(n, self.z_dim, generator=self.noise)

    def critic_step(self):
        real, c = self.ring.draw(self.args.batch)
        with torch.no_grad():
            fake = self.generator.module(self.latent(len(c)), c)
        scores = self.critic(torch.cat([real, fake]), torch.cat([c, c]))
        loss = hinge_critic(*scores.chunk(2))
        self.opt_d.zero_grad(set_to_none=True)
        loss.backward()
        self.opt_d.step()
        return loss.detach()

    def generator_step(self):
        _, c = self.ring.draw(self.args.batch)
        with frozen(self.critic.module) as critic:
            loss = hinge_generator(critic(self.generator(self.latent(len(c)), c), c))
            self.opt_g.zero_grad(set_to_none=True)
            loss.backward()
        self.opt_g.step()
        self.average.update(self.generator.module)
        return loss.detach()

    @torch.no_grad()
    def distance(self, n=400):
        c = torch.arange(n) % 4
        sampler = Generator()
        sampler.load_state_dict(self.average.shadow)
        x = sampler(self.latent(n), c)
        angle = 2 * math.pi * c / 4
        d = (x - 2 * torch.stack([angle.cos(), angle.sin()], dim=1)).norm(dim=1).mean()
        dist.all_reduce(d)
        return d.item() / self.world

    def run(self):
        for step in range(self.args.steps):
            for _ in range(self.args.critic_steps):
                d_loss = self.critic_step()
            g_loss = self.generator_step()
            if step % 20 == 19:
                both = torch.stack([d_loss, g_loss])
                dist.all_reduce(both)
                gap = self.distance()
                if self.rank == 0:
                    d, g = (both / self.world).tolist()
                    print(f"step {step + 1} critic {d:.3f} generator {g:.3f} distance {gap:.3f}", flush=True)

    def save(self):
        if self.rank == 0:
            os.makedirs(self.args.samples, exist_ok=True)
            torch.save({"generator": self.average.shadow, "critic": self.critic.module.state_dict()},
                       os.path.join(self.args.samples, "gan.pt"))


def main():
    args = parse()
    dist.init_process_group("gloo")
    trainer = GANTrainer(args)
    trainer.run()
    trainer.save()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
