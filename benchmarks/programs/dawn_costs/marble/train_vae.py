import math
import os
from collections import defaultdict

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from probes import ActivationProbe

DIM, HIDDEN, LATENT = 256, 512, 16
BATCH, STEPS, LOG_EVERY = 192, 200, 20


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(DIM, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN), nn.GELU())
        self.to_stats = nn.Linear(HIDDEN, 2 * LATENT)
        self.decoder = nn.Sequential(
            nn.Linear(LATENT, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, DIM))

    def forward(self, x):
        mu, logvar = self.to_stats(self.encoder(x)).chunk(2, dim=-1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.decoder(z), mu, logvar


def batch_for(step, rank, basis):
    g = torch.Generator().manual_seed(7919 * step + rank)
    codes = torch.randn(BATCH, basis.shape[0], generator=g)
    return torch.tanh(codes @ basis) + 0.05 * torch.randn(BATCH, DIM, generator=g)


def elbo(recon, x, mu, logvar, beta):
    rec = F.mse_loss(recon, x, reduction="none").sum(-1).mean()
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(-1).mean()
    return rec + beta * kl, rec, kl


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)
    basis = torch.randn(8, DIM) / math.sqrt(8)
    model = DDP(VAE())
    probe = ActivationProbe(model.module, (nn.GELU,))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    meters = defaultdict(float)

    for step in range(STEPS):
        x = batch_for(step, rank, basis)
        recon, mu, logvar = model(x)
        beta = min(1.0, step / 80)
        loss, rec, kl = elbo(recon, x, mu, logvar, beta)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        meters["rec"] += rec.item()
        meters["kl"] += kl.item()
        if (step + 1) % LOG_EVERY == 0:
            vals = torch.tensor([meters["rec"], meters["kl"]]) / LOG_EVERY
            dist.all_reduce(vals)
            vals /= world
            meters.clear()
            if rank == 0:
                spread = " ".join(f"{k}={v:.2f}" for k, v in probe.summary().items())
                print(f"step {step + 1} rec {vals[0]:.3f} kl {vals[1]:.3f} | {spread}", flush=True)

    probe.remove()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    main()
