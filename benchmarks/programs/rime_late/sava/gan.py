"""A small GAN on a ring of eight Gaussians; generator and discriminator have a wrapper each."""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Generator(nn.Module):
    def __init__(self, noise, hidden):
        super().__init__()
        self.noise = noise
        self.net = nn.Sequential(nn.Linear(noise, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def forward(self, z):
        return self.net(z)

    def draw(self, count, gen):
        return self(torch.randn(count, self.noise, generator=gen))


class Discriminator(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


def ring(count, gen):
    angle = torch.randint(0, 8, (count,), generator=gen) * (2 * math.pi / 8)
    centre = torch.stack([angle.cos(), angle.sin()], 1) * 2
    return centre + 0.05 * torch.randn(count, 2, generator=gen)


def covered(points):
    """Share of samples near a mode, and the number of modes that have at least one."""
    angle = torch.arange(8) * (2 * math.pi / 8)
    centres = torch.stack([angle.cos(), angle.sin()], 1) * 2
    distance, mode = torch.cdist(points, centres).min(1)
    near = distance < 0.4
    return near.float().sum(), torch.bincount(mode[near], minlength=8).float()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=1000)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--noise", type=int, default=8)
    ap.add_argument("--hidden", type=int, default=96)
    ap.add_argument("--sample-every", type=int, default=250)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    generator = DDP(Generator(args.noise, args.hidden))
    discriminator = DDP(Discriminator(args.hidden))
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.99))
    opt_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.99))
    gen = torch.Generator().manual_seed(300 + rank)

    for step in range(1, args.rounds + 1):
        with torch.no_grad():
            fake = generator.module.draw(args.batch, gen)
        scores = discriminator(torch.cat([ring(args.batch, gen), fake]))
        real_score, fake_score = scores.chunk(2)
        loss_d = F.softplus(-real_score).mean() + F.softplus(fake_score).mean()
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()

        # the generator's turn: only its own gradients are wanted and exchanged
        discriminator.module.requires_grad_(False)
        fake = generator(torch.randn(args.batch, args.noise, generator=gen))
        loss_g = F.softplus(-discriminator.module(fake)).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        discriminator.module.requires_grad_(True)

        if step % args.sample_every == 0:
            with torch.no_grad():
                near, modes = covered(generator.module.draw(500, gen))
            stats = torch.cat([near.view(1), modes, loss_d.detach().view(1), loss_g.detach().view(1)])
            dist.all_reduce(stats)
            if rank == 0:
                print(f"{step}: near {stats[0].item() / (500 * world):.2f} modes {(stats[1:9] > 0).sum().item()} "
                      f"d {stats[9].item() / world:.3f} g {stats[10].item() / world:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
