"""Wasserstein GAN with gradient penalty on a ring of gaussians."""
import argparse
import math

import torch
import torch.distributed as dist
from torch import autograd, nn
from torch.nn.parallel import DistributedDataParallel as DDP

LATENT = 8


def mlp(i, o, h=64):
    return nn.Sequential(nn.Linear(i, h), nn.LeakyReLU(0.2), nn.Linear(h, h), nn.LeakyReLU(0.2), nn.Linear(h, o))


def ring(n, gen, modes=8):
    k = torch.randint(0, modes, (n,), generator=gen).float() * 2 * math.pi / modes
    return torch.stack([k.cos(), k.sin()], 1) * 2 + 0.05 * torch.randn(n, 2, generator=gen)


def set_grad(module, flag):
    for p in module.parameters():
        p.requires_grad_(flag)


def penalty(critic, real, fake, gen):
    a = torch.rand(len(real), 1, generator=gen)
    mix = (a * real + (1 - a) * fake).requires_grad_(True)
    out = critic(mix)
    g, = autograd.grad(out.sum(), mix, create_graph=True)
    return ((g.norm(dim=1) - 1) ** 2).mean()


def critic_step(critic, generator, opt, real, z, lam, gen):
    with torch.no_grad():
        fake = generator.module(z)
    n = len(real)
    score = critic(torch.cat([real, fake]))
    loss = score[n:].mean() - score[:n].mean() + lam * penalty(critic.module, real, fake, gen)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()


def generator_step(critic, generator, opt, z):
    set_grad(critic.module, False)
    loss = -critic.module(generator(z)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    set_grad(critic.module, True)
    return loss.detach()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--n-critic", type=int, default=3)
    ap.add_argument("--batch", type=int, default=64)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(9)
    generator, critic = DDP(mlp(LATENT, 2)), DDP(mlp(2, 1))
    g_opt = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
    d_opt = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
    gen = torch.Generator().manual_seed(400 + rank)
    for step in range(args.steps):
        for _ in range(args.n_critic):
            z = torch.randn(args.batch, LATENT, generator=gen)
            d_loss = critic_step(critic, generator, d_opt, ring(args.batch, gen), z, 0.1, gen)
        g_loss = generator_step(critic, generator, g_opt, torch.randn(args.batch, LATENT, generator=gen))
        if step % 10 == 0:
            both = torch.stack([d_loss, g_loss])
            dist.all_reduce(both)
            if rank == 0:
                both /= dist.get_world_size()
                print(f"step {step} critic {both[0]:.4f} generator {both[1]:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
