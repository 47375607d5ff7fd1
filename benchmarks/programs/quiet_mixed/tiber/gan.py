import contextlib

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Adversaries:
    def __init__(self, gen, disc, z, rank, micro=2, lr=5e-4):
        self.gen, self.disc = DDP(gen), DDP(disc)
        self.og = torch.optim.Adam(self.gen.parameters(), lr=lr, betas=(0.5, 0.9))
        self.od = torch.optim.Adam(self.disc.parameters(), lr=lr, betas=(0.5, 0.9))
        self.z, self.micro = z, micro
        self.noise = torch.Generator().manual_seed(500 + rank)

    def latent(self, n):
        return torch.randn(n, self.z, generator=self.noise)

    def disc_turn(self, real):
        self.od.zero_grad()
        total = 0.0
        parts = real.chunk(self.micro)
        for k, part in enumerate(parts):
            with torch.no_grad():
                fake = self.gen.module(self.latent(len(part)))
            sync = contextlib.nullcontext() if k == len(parts) - 1 else self.disc.no_sync()
            with sync:
                score = self.disc(torch.cat([part, fake]))
                r, f = score.split(len(part))
                loss = (F.softplus(-r).mean() + F.softplus(f).mean()) / len(parts)
                loss.backward()
            total += loss.item()
        self.od.step()
        return total

    def gen_turn(self, n):
        self.og.zero_grad()
        self.disc.requires_grad_(False)
        total = 0.0
        for k in range(self.micro):
            sync = contextlib.nullcontext() if k == self.micro - 1 else self.gen.no_sync()
            with sync:
                fake = self.gen(self.latent(n // self.micro))
                loss = F.softplus(-self.disc.module(fake)).mean() / self.micro
                loss.backward()
            total += loss.item()
        self.disc.requires_grad_(True)
        self.og.step()
        return total
