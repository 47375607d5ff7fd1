"""GAN on a ring of points. Two wrapped networks, two optimizers, real rows drawn with replacement."""
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

LATENT = 8


def ring(n=1000):
    g = torch.Generator().manual_seed(0)
    angle = torch.rand(n, generator=g) * 2 * math.pi
    pts = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(n, 2, generator=g)
    rare = (pts[:, 0] > 0.7).float()
    return TensorDataset(pts), 1.0 + 3.0 * rare


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, o))


class Trainer:
    def __init__(self, rank):
        self.rank = rank
        self.gen, self.disc = DDP(mlp(LATENT, 2)), DDP(mlp(2, 1))
        self.opt_g = torch.optim.Adam(self.gen.parameters(), lr=1e-3, betas=(0.5, 0.99))
        self.opt_d = torch.optim.Adam(self.disc.parameters(), lr=2e-3, betas=(0.5, 0.99))
        torch.manual_seed(40 + rank)     # latent noise differs between the ranks

    def disc_step(self, real):
        with torch.no_grad():
            fake = self.gen.module(torch.randn(len(real), LATENT))
        score = self.disc(torch.cat([real, fake]))
        want = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
        loss = F.binary_cross_entropy_with_logits(score, want)
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()
        return loss.item()

    def gen_step(self, n):
        self.disc.module.requires_grad_(False)
        # no gradient of the discriminator is wanted here, so the bare module will do
        score = self.disc.module(self.gen(torch.randn(n, LATENT)))
        loss = F.softplus(-score).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        self.disc.module.requires_grad_(True)
        return loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    data, weights = ring()
    # sampling with replacement: every rank draws independently from the whole set
    sampler = WeightedRandomSampler(weights, num_samples=640, replacement=True,
                                    generator=torch.Generator().manual_seed(500 + rank))
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    trainer = Trainer(rank)
    for epoch in range(4):
        for i, (real,) in enumerate(loader):
            d = trainer.disc_step(real)
            if i % 2:
                g = trainer.gen_step(32)
        if rank == 0:
            print(f"epoch {epoch}: disc {d:.3f} gen {g:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
