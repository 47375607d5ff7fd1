"""Curiosity-driven exploration: the predictor's error against a fixed random net is the bonus."""
import argparse
import os
import random
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Config:
    obs_dim: int = 24
    embed: int = 32
    hidden: int = 96
    iterations: int = 40
    envs: int = 16
    horizon: int = 8
    minibatches: int = 2
    lr: float = 1e-3
    seed: int = 17


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def mlp(sizes):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.1)]
    return nn.Sequential(*layers[:-1])


class Walkers:
    """Vectorised random walks on a torus, observed through Fourier features."""

    def __init__(self, cfg, seed):
        self.rng = np.random.default_rng(seed)
        self.pos = self.rng.uniform(0, 1, size=(cfg.envs, 3))
        self.freq = np.arange(1, cfg.obs_dim // 6 + 1)

    def observe(self):
        ang = 2 * np.pi * self.pos[:, :, None] * self.freq
        obs = np.concatenate([np.sin(ang), np.cos(ang)], axis=-1)
        return torch.as_tensor(obs.reshape(len(obs), -1), dtype=torch.float32)

    def step(self):
        self.pos = (self.pos + self.rng.normal(0, 0.03, self.pos.shape)) % 1.0
        return self.observe()


class NoveltyBonus:
    def __init__(self, cfg):
        self.target = mlp([cfg.obs_dim, cfg.hidden, cfg.embed])
        self.target.requires_grad_(False)
        self.target.eval()
        self.predictor = DDP(mlp([cfg.obs_dim, cfg.hidden, cfg.hidden, cfg.embed]))
        self.opt = torch.optim.Adam(self.predictor.parameters(), lr=cfg.lr)

    @torch.no_grad()
    def bonus(self, obs):
        return (self.predictor.module(obs) - self.target(obs)).pow(2).mean(-1)

    def update(self, obs):
        loss = (self.predictor(obs) - self.target(obs)).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=Config.iterations)
    ap.add_argument("--out", default="out_inari")
    args = ap.parse_args()
    cfg = Config(iterations=args.iterations)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    seed_everything(cfg.seed + rank)
    walkers = Walkers(cfg, cfg.seed + 100 * rank)
    novelty = NoveltyBonus(cfg)

    for it in range(cfg.iterations):
        batch = torch.cat([walkers.step() for _ in range(cfg.horizon)])
        reward = novelty.bonus(batch)
        losses = [novelty.update(batch[i]) for i in torch.randperm(len(batch)).chunk(cfg.minibatches)]
        stats = torch.stack([torch.stack(losses).mean(), reward.mean()])
        dist.all_reduce(stats)
        stats /= world
        if rank == 0 and it % 8 == 0:
            print(f"iter {it:3d} predictor loss {stats[0]:.5f} bonus {stats[1]:.5f}", flush=True)
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save({"predictor": novelty.predictor.module.state_dict(),
                    "target": novelty.target.state_dict()}, os.path.join(args.out, "bonus.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
