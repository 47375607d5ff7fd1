"""WGAN-GP on a ring of Gaussians: several critic steps for each generator step, both under DDP."""
import math

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, N_CRITIC, BATCH, Z = 10, 3, 64, 8


def mlp(i, o, act=nn.LeakyReLU):
    return nn.Sequential(nn.Linear(i, 64), act(0.2), nn.Linear(64, 64), act(0.2), nn.Linear(64, o))


class Ring:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def real(self, n):
        k = torch.randint(0, 8, (n,), generator=self.g) * (2 * math.pi / 8)
        return torch.stack([k.cos(), k.sin()], 1) + 0.05 * torch.randn(n, 2, generator=self.g)

    def noise(self, n):
        return torch.randn(n, Z, generator=self.g)


class GradientPenalty(nn.Module):
    """Critic and penalty in one module, so that the double backward stays inside DDP's forward."""

    def __init__(self, critic, weight=10.0):
        super().__init__()
        self.critic, self.weight = critic, weight

    def forward(self, real, fake, eps):
        mix = (eps * real + (1 - eps) * fake).requires_grad_(True)
        grad, = torch.autograd.grad(self.critic(mix).sum(), mix, create_graph=True)
        gp = (grad.norm(dim=1) - 1).square().mean()
        return self.critic(fake).mean() - self.critic(real).mean() + self.weight * gp


def set_grad(module, flag):
    for p in module.parameters():
        p.requires_grad_(flag)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(17)
    critic_core = mlp(2, 1)
    gen, critic = DDP(mlp(Z, 2)), DDP(GradientPenalty(critic_core))
    og = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.0, 0.9))
    oc = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
    data = Ring(300 + rank)
    for step in range(STEPS):
        for _ in range(N_CRITIC):
            with torch.no_grad():
                fake = gen.module(data.noise(BATCH))
            loss_c = critic(data.real(BATCH), fake, torch.rand(BATCH, 1, generator=data.g))
            oc.zero_grad()
            loss_c.backward()
            oc.step()
        set_grad(critic_core, False)
        loss_g = -critic_core(gen(data.noise(BATCH))).mean()
        og.zero_grad()
        loss_g.backward()
        og.step()
        set_grad(critic_core, True)
        if rank == 0 and step % 3 == 0:
            print(f"step {step} critic {loss_c.item():.3f} gen {loss_g.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
