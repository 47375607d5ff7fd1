"""Vector-quantised autoencoder; the codebook follows an exponential moving average of its members."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

DIM, CODES, KINDS = 8, 48, 12


class Codebook(nn.Module):
    def __init__(self, codes, dim, decay=0.97, eps=1e-4):
        super().__init__()
        self.decay, self.eps = decay, eps
        embed = torch.randn(codes, dim)
        self.register_buffer("embed", embed)
        self.register_buffer("cluster_size", torch.ones(codes))
        self.register_buffer("embed_sum", embed.clone())

    @torch.no_grad()
    def update(self, z, index):
        onehot = F.one_hot(index, self.embed.size(0)).type_as(z)
        count, total = onehot.sum(0), onehot.t() @ z
        self.cluster_size.mul_(self.decay).add_(count, alpha=1 - self.decay)
        self.embed_sum.mul_(self.decay).add_(total, alpha=1 - self.decay)
        n = self.cluster_size.sum()
        size = (self.cluster_size + self.eps) / (n + self.embed.size(0) * self.eps) * n
        self.embed.copy_(self.embed_sum / size.unsqueeze(1))

    def forward(self, z):
        index = torch.cdist(z.detach(), self.embed).argmin(1)
        q = self.embed[index].clone()
        if self.training:
            self.update(z.detach(), index)
        commit = F.mse_loss(z, q)
        return z + (q - z).detach(), commit, index


class VQAutoencoder(nn.Module):
    def __init__(self, n_in=64):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(n_in, 96), nn.ReLU(), nn.Linear(96, DIM))
        self.codebook = Codebook(CODES, DIM)
        self.dec = nn.Sequential(nn.Linear(DIM, 96), nn.ReLU(), nn.Linear(96, n_in))

    def forward(self, x):
        q, commit, index = self.codebook(self.enc(x))
        return self.dec(q), commit, index


class Recordings:
    """Each rank reads its own set of recordings; every set has its own kinds of signal."""

    def __init__(self, rank, world):
        g = torch.Generator().manual_seed(13)
        self.proto = torch.randn(KINDS, 64, generator=g)
        self.mine = torch.arange(KINDS)[rank::world]
        self.gen = torch.Generator().manual_seed(500 + rank)

    def batch(self, n):
        k = self.mine[torch.randint(len(self.mine), (n,), generator=self.gen)]
        amp = 0.7 + 0.6 * torch.rand(n, 1, generator=self.gen)
        return amp * self.proto[k] + 0.1 * torch.randn(n, 64, generator=self.gen)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    model = DDP(VQAutoencoder())
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    data = Recordings(rank, world)
    usage = torch.zeros(CODES)
    for step in range(400):
        x = data.batch(128)
        recon, commit, index = model(x)
        rec = F.mse_loss(recon, x)
        opt.zero_grad()
        (rec + 0.25 * commit).backward()
        opt.step()
        usage += torch.bincount(index, minlength=CODES)
        if (step + 1) % 50 == 0:
            stats = torch.tensor([rec.item(), commit.item()])
            dist.all_reduce(stats)
            dist.all_reduce(usage)
            if rank == 0:
                print(f"step {step + 1} recon {stats[0] / world:.4f} commit {stats[1] / world:.4f} "
                      f"codes in use {(usage > 0).sum().item()}", flush=True)
            usage.zero_()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
