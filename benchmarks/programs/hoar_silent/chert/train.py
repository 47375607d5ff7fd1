import argparse
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from nets import Discriminator, Generator


def real_samples(n, gen, modes=8):
    a = torch.randint(0, modes, (n,), generator=gen) * (2 * math.pi / modes)
    return torch.stack([a.cos(), a.sin()], 1) + 0.05 * torch.randn(n, 2, generator=gen)


def requires_grad(model, flag):
    for p in model.parameters():
        p.requires_grad_(flag)


class GAN:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        torch.manual_seed(0)
        self.g, self.d = DDP(Generator(args.z)), DDP(Discriminator())
        self.opt_g = torch.optim.Adam(self.g.parameters(), lr=args.lr, betas=(0.5, 0.999))
        self.opt_d = torch.optim.Adam(self.d.parameters(), lr=args.lr, betas=(0.5, 0.999))
        self.rng = torch.Generator().manual_seed(77 + self.rank)

    def noise(self):
        return torch.randn(self.args.batch, self.args.z, generator=self.rng)

    def d_step(self):
        x = real_samples(self.args.batch, self.rng)
        with torch.no_grad():
            fake = self.g(self.noise())
        out = self.d(torch.cat([x, fake]))
        real_out, fake_out = out.chunk(2)
        loss = F.softplus(-real_out).mean() + F.softplus(fake_out).mean()
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()
        return loss.detach()

    def g_step(self):
        d = self.d.module
        requires_grad(d, False)
        loss = F.softplus(-d(self.g(self.noise()))).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        requires_grad(d, True)
        return loss.detach()

    def run(self):
        for it in range(1, self.args.iters + 1):
            for _ in range(self.args.d_per_g):
                ld = self.d_step()
            lg = self.g_step()
            if it % 30 == 0:
                t = torch.stack([ld, lg])
                dist.all_reduce(t)
                t /= dist.get_world_size()
                if self.rank == 0:
                    print(f"it {it} d {t[0]:.3f} g {t[1]:.3f}", flush=True)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--iters", type=int, default=150)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--z", type=int, default=8)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--d-per-g", type=int, default=2)
    dist.init_process_group("gloo")
    gan = GAN(p.parse_args())
    gan.run()
    dist.barrier()
    dist.destroy_process_group()
