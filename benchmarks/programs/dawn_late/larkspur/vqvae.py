"""VQ-VAE on small synthetic textures; the codebook is learned by moving averages, not by gradients."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


class Codebook(nn.Module):
    def __init__(self, size, dim, decay=0.95):
        super().__init__()
        self.decay = decay
        self.register_buffer("codes", torch.randn(size, dim))
        self.register_buffer("mass", torch.ones(size))
        self.register_buffer("total", self.codes.clone())

    @torch.no_grad()
    def absorb(self, flat, onehot):
        size, dim = self.codes.shape
        packed = torch.cat([onehot.sum(0).unsqueeze(1), onehot.t() @ flat], 1)
        dist.all_reduce(packed)
        self.mass.mul_(self.decay).add_(packed[:, 0], alpha=1 - self.decay)
        self.total.mul_(self.decay).add_(packed[:, 1:], alpha=1 - self.decay)
        n = self.mass.sum()
        smooth = (self.mass + 1e-5) / (n + size * 1e-5) * n
        self.codes.copy_(self.total / smooth.unsqueeze(1))

    def forward(self, z):
        flat = z.permute(0, 2, 3, 1).reshape(-1, z.shape[1])
        index = torch.cdist(flat.detach(), self.codes).argmin(1)
        quant = F.embedding(index, self.codes).view(z.shape[0], *z.shape[2:], -1).permute(0, 3, 1, 2)
        commit = F.mse_loss(z, quant)
        if self.training:
            self.absorb(flat.detach(), F.one_hot(index, len(self.codes)).float())
        return z + (quant - z).detach(), commit


class VQVAE(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 24, 4, 2, 1), nn.ReLU(), nn.Conv2d(24, dim, 4, 2, 1))
        self.book = Codebook(48, dim)
        self.dec = nn.Sequential(nn.ConvTranspose2d(dim, 24, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(24, 1, 4, 2, 1))

    def forward(self, x):
        q, commit = self.book(self.enc(x))
        return self.dec(q), commit


def textures(gen, n, side=24):
    grid = torch.arange(side) / side
    fx, fy, ph = (torch.rand(n, 1, 1, generator=gen) for _ in range(3))
    return torch.sin(12 * (fx * grid.view(1, 1, -1) + fy * grid.view(1, -1, 1)) + 6.28 * ph).unsqueeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=100)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--beta", type=float, default=0.25)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)
    model = DistributedDataParallel(VQVAE())
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(900 + rank)
    for step in range(args.steps):
        x = textures(gen, args.batch)
        recon, commit = model(x)
        loss = F.mse_loss(recon, x) + args.beta * commit
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            shown = loss.detach() / world
            dist.all_reduce(shown)
            if rank == 0:
                print(f"step {step} loss {shown.item():.4f} live codes {(model.module.book.mass > 0.1).sum().item()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
