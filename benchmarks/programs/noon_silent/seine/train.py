"""Wasserstein GAN with gradient penalty; gradients are averaged by hand after each phase."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def mlp(sizes, act):
    mods = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        mods += [nn.Linear(a, b), act()]
    return nn.Sequential(*mods[:-1])


class GradSync:
    """One flat buffer per network."""

    def __init__(self, module):
        self.params = list(module.parameters())
        for p in self.params:
            dist.broadcast(p.data, src=0)

    def __call__(self):
        flat = torch.cat([p.grad.reshape(-1) for p in self.params])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        offset = 0
        for p in self.params:
            p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
            offset += p.numel()


def set_trainable(module, flag):
    for p in module.parameters():
        p.requires_grad_(flag)


def gradient_penalty(critic, real, fake):
    mix = torch.rand(real.size(0), 1)
    x = (mix * real + (1 - mix) * fake).requires_grad_(True)
    g, = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    return (g.norm(2, 1) - 1).pow(2).mean()


def make_leaves(n, points=24, seed=0):
    g = torch.Generator().manual_seed(seed)
    th = torch.linspace(0, 6.28, points)
    lobes = torch.randint(3, 6, (n, 1), generator=g).float()
    amp = 0.2 + 0.3 * torch.rand(n, 1, generator=g)
    r = 1 + amp * torch.cos(lobes * th)
    return torch.cat([r * th.cos(), r * th.sin()], 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--critic-steps", type=int, default=3)
    ap.add_argument("--latent", type=int, default=16)
    ap.add_argument("--lr", type=float, default=5e-4)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(12)
    gen, critic = mlp([args.latent, 192, 192, 48], nn.ReLU), mlp([48, 192, 192, 1], lambda: nn.LeakyReLU(0.2))
    sync_g, sync_c = GradSync(gen), GradSync(critic)
    opt_g = torch.optim.Adam(gen.parameters(), lr=args.lr, betas=(0.0, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), lr=args.lr, betas=(0.0, 0.9))
    ds = TensorDataset(make_leaves(6144))
    sampler = DistributedSampler(ds, shuffle=True, drop_last=True)
    loader = DataLoader(ds, args.batch_size, sampler=sampler, drop_last=True)
    torch.manual_seed(1200 + rank)

    it = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for (real,) in loader:
            with torch.no_grad():
                fake = gen(torch.randn(real.size(0), args.latent))
            gap = critic(real).mean() - critic(fake).mean()
            opt_c.zero_grad()
            (-gap + 10 * gradient_penalty(critic, real, fake)).backward()
            sync_c()
            opt_c.step()
            it += 1
            if it % args.critic_steps == 0:
                set_trainable(critic, False)
                loss_g = -critic(gen(torch.randn(real.size(0), args.latent))).mean()
                opt_g.zero_grad()
                loss_g.backward()
                sync_g()
                opt_g.step()
                set_trainable(critic, True)
        stat = gap.detach().clone()
        dist.all_reduce(stat)
        if rank == 0:
            print(f"epoch {epoch} iter {it} critic gap {stat.item() / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
