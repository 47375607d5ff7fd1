"""Two-dimensional denoising diffusion with early stopping on the pooled validation loss."""
import math
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

T = 100


class Denoiser(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.freqs = nn.Buffer(torch.exp(torch.linspace(0, math.log(1000), 16)))
        self.net = nn.Sequential(
            nn.Linear(2 + 32, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, x, t):
        angle = (t[:, None].float() / T) * self.freqs
        return self.net(torch.cat([x, angle.sin(), angle.cos()], 1))


def moons(n, gen):
    a = torch.rand(n, generator=gen) * math.pi
    upper = torch.rand(n, generator=gen) < 0.5
    x = torch.where(upper, a.cos(), 1 - a.cos())
    y = torch.where(upper, a.sin(), 0.5 - a.sin())
    return torch.stack([x - 0.5, y - 0.25], 1) + 0.05 * torch.randn(n, 2, generator=gen)


class EarlyStop:
    def __init__(self, patience, min_delta):
        self.patience, self.min_delta = patience, min_delta
        self.best, self.bad = float("inf"), 0

    def update(self, value):
        if value < self.best - self.min_delta:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


def diffusion_loss(model, x0, alphas, gen):
    t = torch.randint(T, (len(x0),), generator=gen)
    noise = torch.randn(x0.shape, generator=gen)
    a = alphas[t, None]
    return (model(a.sqrt() * x0 + (1 - a).sqrt() * noise, t) - noise).pow(2).mean()


def main():
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(30)
    model = DDP(Denoiser())
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    alphas = torch.cumprod(1 - torch.linspace(1e-3, 0.06, T), 0)
    gen = torch.Generator().manual_seed(80 + rank)
    held_out = moons(2048, torch.Generator().manual_seed(5000 + rank))
    stopper = EarlyStop(patience=6, min_delta=1e-3)

    for step in range(1, 2001):
        loss = diffusion_loss(model, moons(768, gen), alphas, gen)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 25 == 0:
            with torch.no_grad():
                val = diffusion_loss(model.module, held_out, alphas, torch.Generator().manual_seed(rank))
            dist.all_reduce(val)
            stop = torch.zeros(1, dtype=torch.int32)
            if rank == 0:
                stop.fill_(int(stopper.update(val.item() / world)))
                print(f"step {step} train {loss.item():.4f} val {val.item() / world:.4f} best {stopper.best:.4f}", flush=True)
                time.sleep(0.2)  # keeps within the rate limit of the metrics endpoint
            dist.broadcast(stop, src=0)
            if stop.item():
                if rank == 0:
                    print(f"stopping at step {step}", flush=True)
                break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
