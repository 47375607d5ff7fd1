"""VQ autoencoder with an exponentially averaged codebook."""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Codebook(nn.Module):
    """Codes are buffers; they follow the mean of the vectors that chose them."""

    def __init__(self, codes, dim, decay=0.9, eps=1e-5):
        super().__init__()
        self.decay, self.eps = decay, eps
        embed = torch.randn(codes, dim)
        self.register_buffer("embed", embed)
        self.register_buffer("embed_sum", embed.clone())
        self.register_buffer("cluster_size", torch.ones(codes))

    @torch.no_grad()
    def update(self, flat, choice):
        onehot = F.one_hot(choice, self.embed.size(0)).type_as(flat)
        counts = onehot.sum(0)
        sums = onehot.t() @ flat
        dist.all_reduce(counts)
        dist.all_reduce(sums)
        self.cluster_size.mul_(self.decay).add_(counts, alpha=1 - self.decay)
        self.embed_sum.mul_(self.decay).add_(sums, alpha=1 - self.decay)
        total = self.cluster_size.sum()
        size = (self.cluster_size + self.eps) / (total + len(counts) * self.eps) * total
        self.embed.copy_(self.embed_sum / size.unsqueeze(1))

    def forward(self, z):
        choice = torch.cdist(z, self.embed).argmin(1)
        quant = self.embed[choice]
        if self.training:
            self.update(z.detach(), choice)
        commit = F.mse_loss(z, quant.detach())
        return z + (quant - z).detach(), commit, choice


class VQAutoencoder(nn.Module):
    def __init__(self, dim=16, latent=6, codes=24):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(dim, 32), nn.ReLU(), nn.Linear(32, latent))
        self.book = Codebook(codes, latent)
        self.dec = nn.Sequential(nn.Linear(latent, 32), nn.ReLU(), nn.Linear(32, dim))

    def forward(self, x):
        quant, commit, choice = self.book(self.enc(x))
        return self.dec(quant), commit, choice


def frames(gen, centers, size):
    pick = torch.randint(0, len(centers), (size,), generator=gen)
    return centers[pick] + 0.2 * torch.randn(size, centers.size(1), generator=gen)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=80)
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--beta", type=float, default=0.25)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(8)
    centers = torch.randn(20, 16)
    # in-place codebook updates and buffer broadcasts do not go together
    ddp = DDP(VQAutoencoder(), broadcast_buffers=False)
    opt = torch.optim.Adam(ddp.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(90 + rank)

    for step in range(args.steps):
        x = frames(gen, centers, args.batch)
        recon, commit, choice = ddp(x)
        loss = F.mse_loss(recon, x) + args.beta * commit
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f} codes in use {choice.unique().numel()}", flush=True)
    ddp.eval()
    with torch.no_grad():
        x = frames(torch.Generator().manual_seed(1), centers, 256)
        recon, _, _ = ddp(x)
        score = F.mse_loss(recon, x)
    if rank == 0:
        print(f"held-out reconstruction {score.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
