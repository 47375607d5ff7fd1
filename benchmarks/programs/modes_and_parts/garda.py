"""WGAN with weight clipping on a ring of Gaussians."""
import argparse
import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Generator(nn.Module):
    def __init__(self, latent, width=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(latent, width), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, z):
        return self.net(z)


class Critic(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.LeakyReLU(0.2), nn.Linear(width, width),
                                 nn.LeakyReLU(0.2), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def ring(n, seed):
    g = torch.Generator().manual_seed(seed)
    k = torch.randint(0, 8, (n,), generator=g) * (2 * math.pi / 8)
    return TensorDataset(torch.stack([k.cos(), k.sin()], 1) * 2 + 0.1 * torch.randn(n, 2, generator=g))


class Game:
    def __init__(self, args, rank):
        self.args = args
        torch.manual_seed(args.seed)
        self.generator = DDP(Generator(args.latent))
        self.critic = DDP(Critic())
        self.opt_g = torch.optim.RMSprop(self.generator.parameters(), lr=args.lr)
        self.opt_c = torch.optim.RMSprop(self.critic.parameters(), lr=args.lr)
        self.noise = torch.Generator().manual_seed(args.seed * 31 + rank)

    def latent(self, n):
        return torch.randn(n, self.args.latent, generator=self.noise)

    def critic_step(self, real):
        self.generator.eval()
        with torch.no_grad():
            fake = self.generator.module(self.latent(len(real)))
        score = self.critic(torch.cat([real, fake]))
        loss = score[len(real):].mean() - score[:len(real)].mean()
        self.opt_c.zero_grad()
        loss.backward()
        self.opt_c.step()
        with torch.no_grad():
            for p in self.critic.parameters():
                p.clamp_(-self.args.clip, self.args.clip)
        return loss.detach()

    def generator_step(self, n):
        self.generator.train()
        self.critic.requires_grad_(False)
        loss = -self.critic.module(self.generator(self.latent(n))).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        self.critic.requires_grad_(True)
        return loss.detach()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--critic-steps", type=int, default=3)
    ap.add_argument("--latent", type=int, default=8)
    ap.add_argument("--clip", type=float, default=0.1)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=4)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    game = Game(args, rank)
    data = ring(1536, 8)
    sampler = DistributedSampler(data, seed=args.seed, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    lg = torch.zeros(())
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for i, (real,) in enumerate(loader, 1):
            lc = game.critic_step(real)
            if i % args.critic_steps == 0:
                lg = game.generator_step(len(real))
        both = torch.stack([lc, lg])
        dist.all_reduce(both)
        if rank == 0:
            print(f"epoch {epoch} critic {both[0] / world:.4f} generator {both[1] / world:.4f}", flush=True)
    for b in game.generator.module.buffers():
        if b.is_floating_point():
            dist.all_reduce(b)
            b /= world
    if rank == 0:
        os.makedirs("out_garda", exist_ok=True)
        torch.save(game.generator.module.state_dict(), "out_garda/generator.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
