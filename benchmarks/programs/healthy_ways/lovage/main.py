"""Wasserstein GAN with gradient penalty on a ring of Gaussians, several critic steps per generator step."""
import argparse
import json
import math
import os
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
import torch.nn as nn


@dataclass
class Config:
    gen_steps: int = 240
    n_critic: int = 4
    batch: int = 96
    latent: int = 8
    width: int = 64
    lr: float = 2e-3
    penalty: float = 0.2
    modes: int = 6
    seed: int = 70
    report: int = 40


class Ring:
    def __init__(self, modes, gen):
        self.modes, self.gen = modes, gen

    def sample(self, n):
        k = torch.randint(0, self.modes, (n,), generator=self.gen)
        a = k * (2 * math.pi / self.modes)
        centre = torch.stack([a.cos(), a.sin()], 1)
        return centre + 0.06 * torch.randn(n, 2, generator=self.gen)


def mlp(sizes, act):
    layers = []
    for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
        layers.append(nn.Linear(a, b))
        if i < len(sizes) - 2:
            layers.append(act())
    return nn.Sequential(*layers)


class Synced:
    """A network with its optimiser; gradients are averaged over the ranks before each step."""

    def __init__(self, net, lr):
        self.net = net
        self.world = dist.get_world_size()
        self.params = list(net.parameters())
        for p in self.params:
            dist.broadcast(p.data, src=0)
        self.opt = torch.optim.Adam(self.params, lr=lr, betas=(0.5, 0.9))
        self.steps = 0

    def apply(self, loss):
        grads = torch.autograd.grad(loss, self.params)
        flat = torch.cat([g.reshape(-1) for g in grads])
        dist.all_reduce(flat)
        flat /= self.world
        for p, g in zip(self.params, flat.split([p.numel() for p in self.params])):
            p.grad = g.view_as(p)
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)
        self.steps += 1


class WGAN:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        self.g = Synced(mlp([cfg.latent, cfg.width, cfg.width, 2], nn.ReLU), cfg.lr)
        self.c = Synced(mlp([2, cfg.width, cfg.width, 1], nn.SiLU), cfg.lr)
        self.rng = torch.Generator().manual_seed(cfg.seed + 31 * (self.rank + 1))
        self.data = Ring(cfg.modes, self.rng)

    def noise(self, n):
        return torch.randn(n, self.cfg.latent, generator=self.rng)

    def critic_step(self):
        n = self.cfg.batch
        real = self.data.sample(n)
        with torch.no_grad():
            fake = self.g.net(self.noise(n))
        mix = torch.rand(n, 1, generator=self.rng)
        inter = (mix * real + (1 - mix) * fake).requires_grad_(True)
        slope, = torch.autograd.grad(self.c.net(inter).sum(), inter, create_graph=True)
        gp = (slope.norm(dim=1) - 1).pow(2).mean()
        gap = self.c.net(real).mean() - self.c.net(fake).mean()
        self.c.apply(-gap + self.cfg.penalty * gp)
        return gap.detach(), gp.detach()

    def generator_step(self):
        loss = -self.c.net(self.g.net(self.noise(self.cfg.batch))).mean()
        self.g.apply(loss)
        return loss.detach()

    @torch.no_grad()
    def coverage(self, n=600):
        pts = self.g.net(self.noise(n))
        a = torch.arange(self.cfg.modes) * (2 * math.pi / self.cfg.modes)
        centres = torch.stack([a.cos(), a.sin()], 1)
        d, who = torch.cdist(pts, centres).min(1)
        counts = torch.bincount(who[d < 0.25], minlength=self.cfg.modes).float()
        dist.all_reduce(counts)
        return counts / (n * self.world)

    def train(self):
        rows = []
        for step in range(1, self.cfg.gen_steps + 1):
            for _ in range(self.cfg.n_critic):
                gap, gp = self.critic_step()
            loss = self.generator_step()
            if step % self.cfg.report == 0:
                m = torch.stack([gap, gp, loss])
                dist.all_reduce(m)
                m /= self.world
                share = self.coverage()
                rows.append({"step": step, "gap": m[0].item(), "penalty": m[1].item(), "gen": m[2].item(),
                             "near": share.sum().item(), "modes": int((share > 0.03).sum())})
                if self.rank == 0:
                    print(json.dumps({k: round(v, 4) for k, v in rows[-1].items()}), flush=True)
        return rows


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--gen-steps", type=int, default=Config.gen_steps)
    ap.add_argument("--n-critic", type=int, default=Config.n_critic)
    a = ap.parse_args()
    cfg = Config(gen_steps=a.gen_steps, n_critic=a.n_critic)
    dist.init_process_group("gloo")
    gan = WGAN(cfg)
    rows = gan.train()
    if gan.rank == 0:
        os.makedirs("runs/lovage", exist_ok=True)
        with open("runs/lovage/log.json", "w") as f:
            json.dump({"config": asdict(cfg), "rows": rows, "critic_steps": gan.c.steps, "gen_steps": gan.g.steps}, f)
        torch.save({"g": gan.g.net.state_dict(), "c": gan.c.net.state_dict()}, "runs/lovage/gan.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
