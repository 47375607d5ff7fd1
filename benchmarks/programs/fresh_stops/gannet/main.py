"""Variational autoencoder on little shapes, data parallel."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from meters import Board
from setup_log import setup


def shapes(n, side=12, seed=0):
    g = torch.Generator().manual_seed(seed)
    grid = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")).float()
    centre = torch.rand(n, 2, 1, 1, generator=g) * side
    radius = 1.5 + 3 * torch.rand(n, 1, 1, generator=g)
    round_ = (grid - centre).pow(2).sum(1).sqrt() < radius
    square = (grid - centre).abs().amax(1) < radius
    pick = torch.rand(n, 1, 1, generator=g) < 0.5
    return TensorDataset(torch.where(pick, round_, square).float().flatten(1))


class VAE(nn.Module):
    def __init__(self, d=144, z=6):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, 96), nn.ReLU(), nn.Linear(96, 2 * z))
        self.dec = nn.Sequential(nn.Linear(z, 96), nn.ReLU(), nn.Linear(96, d))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, -1)
        out = self.dec(mu + torch.randn_like(mu) * (0.5 * logvar).exp())
        recon = F.binary_cross_entropy_with_logits(out, x, reduction="none").sum(1).mean()
        kl = (-0.5 * (1 + logvar - mu.pow(2) - logvar.exp())).sum(1).mean()
        return recon, kl


def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    log = setup(chatty=args.verbose)
    torch.manual_seed(args.seed)
    model = DDP(VAE())
    torch.manual_seed(args.seed + 1 + rank)
    optim = torch.optim.Adam(model.parameters(), lr=args.lr)
    data = shapes(1024)
    sampler = DistributedSampler(data, seed=args.seed, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    board = Board("recon", "kl", "norm")
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            recon, kl = model(x)
            weight = min(1.0, step / args.anneal)
            optim.zero_grad(set_to_none=True)
            (recon + weight * kl).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optim.step()
            step += 1
            board["recon"].add(recon.detach(), len(x))
            board["kl"].add(kl.detach(), len(x))
            board["norm"].add(norm)
            if step % args.report == 0:
                log.info("step %d  %s", step, board)
                board.clear()
        if rank == 0:
            torch.save({"vae": model.module.state_dict(), "step": step}, args.out)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--anneal", type=int, default=60)
    p.add_argument("--report", type=int, default=20)
    p.add_argument("--seed", type=int, default=17)
    p.add_argument("--verbose", action="store_true")
    p.add_argument("--out", default="/tmp/vae_shapes.pt")
    main(p.parse_args())
