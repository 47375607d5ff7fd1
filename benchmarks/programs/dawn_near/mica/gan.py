"""A small GAN with scheduled garbage collection and a table of sample statistics gathered now and then."""
import argparse
import gc
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class ScheduledGC:
    """Collection is off between fixed steps, so that all ranks collect at the same time."""

    def __init__(self, every):
        self.every = every
        gc.disable()
        gc.collect(1)
        gc.freeze()

    def __call__(self, step):
        if step > 1 and step % self.every == 0:
            gc.collect(1)


def mlp(*dims):
    layers = []
    for a, b in zip(dims, dims[1:]):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


def ring(n, g):
    k = torch.randint(0, 8, (n,), generator=g).float() * (6.2832 / 8)
    return torch.stack([k.cos(), k.sin()], 1) * 1.5 + 0.06 * torch.randn(n, 2, generator=g)


def statistics_of(samples):
    angle = torch.atan2(samples[:, 1], samples[:, 0])
    mode = ((angle / 6.2832 * 8).round().long() % 8).bincount(minlength=8)
    return {"modes": mode.tolist(), "radius": samples.norm(dim=1).mean().item()}


class Journal:
    def __init__(self, rank):
        self.path = tempfile.mkstemp(prefix=f"ring_{rank}_", suffix=".csv")[1]
        self.file = open(self.path, "w")

    def write(self, step, d, g):
        self.file.write(f"{step},{d:.5f},{g:.5f}\n")

    def close(self):
        self.file.close()
        os.remove(self.path)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=200)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--noise", type=int, default=8)
    ap.add_argument("--report-every", type=int, default=50)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    gen, disc = DDP(mlp(args.noise, 128, 128, 2)), DDP(mlp(2, 128, 128, 1))
    opt_g = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.5, 0.9))
    opt_d = torch.optim.Adam(disc.parameters(), lr=1e-3, betas=(0.5, 0.9))
    g = torch.Generator().manual_seed(20 + rank)
    collect = ScheduledGC(every=50)
    journal = Journal(rank)
    start = time.time()
    for step in range(1, args.steps + 1):
        collect(step)
        real = ring(args.batch, g)
        with torch.no_grad():
            fake = gen(torch.randn(args.batch, args.noise, generator=g))
        score = disc(torch.cat([real, fake]))
        s_real, s_fake = score.chunk(2)
        loss_d = F.softplus(-s_real).mean() + F.softplus(s_fake).mean()
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()

        disc.requires_grad_(False)
        loss_g = F.softplus(-disc.module(gen(torch.randn(args.batch, args.noise, generator=g)))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        disc.requires_grad_(True)
        journal.write(step, loss_d.item(), loss_g.item())

        if step % args.report_every == 0:
            with torch.no_grad():
                mine = statistics_of(gen.module(torch.randn(512, args.noise, generator=g)))
            table = [None] * world
            dist.all_gather_object(table, mine)
            if rank == 0:
                modes = [sum(t["modes"][i] for t in table) for i in range(8)]
                radius = sum(t["radius"] for t in table) / world
                print(f"step {step} d {loss_d.item():.3f} g {loss_g.item():.3f} radius {radius:.2f} "
                      f"modes {modes} {time.time() - start:.1f}s", flush=True)
    journal.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
