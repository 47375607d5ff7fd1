import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class EmaCodebook(nn.Module):
    """Code vectors follow moving sums of the assigned features; rank 0 revives unused codes for all."""

    def __init__(self, codes, dim, decay=0.97):
        super().__init__()
        self.decay = decay
        self.register_buffer("codes", torch.randn(codes, dim))
        self.register_buffer("mass", torch.ones(codes))
        self.register_buffer("sums", self.codes.clone())

    def assign(self, z):
        d = z.pow(2).sum(1, keepdim=True) - 2 * z @ self.codes.t() + self.codes.pow(2).sum(1)
        return d.argmin(1)

    @torch.no_grad()
    def follow(self, z, index, rank, world):
        onehot = F.one_hot(index, len(self.codes)).to(z.dtype)
        stats = torch.cat([onehot.sum(0, keepdim=True).t(), onehot.t() @ z], 1)
        dist.all_reduce(stats)
        self.mass.mul_(self.decay).add_(stats[:, 0], alpha=1 - self.decay)
        self.sums.mul_(self.decay).add_(stats[:, 1:], alpha=1 - self.decay)
        self.codes.copy_(self.sums / self.mass.clamp(min=1e-3).unsqueeze(1))
        pack = torch.cat([self.codes, self.sums, self.mass.unsqueeze(1)], 1)
        if rank == 0:
            idle = (self.mass < 0.5).nonzero().squeeze(1)
            if len(idle):
                pick = z[torch.randint(0, len(z), (len(idle),))]
                pack[idle] = torch.cat([pick, pick, torch.ones(len(idle), 1)], 1)
        dist.broadcast(pack, src=0)
        d = self.codes.shape[1]
        self.codes.copy_(pack[:, :d])
        self.sums.copy_(pack[:, d:2 * d])
        self.mass.copy_(pack[:, -1])


class AutoEncoder(nn.Module):
    def __init__(self, ch=40, dim=24):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, ch, 4, 2, 1), nn.ReLU(), nn.Conv2d(ch, ch, 4, 2, 1), nn.ReLU(),
                                 nn.Conv2d(ch, dim, 1))
        self.dec = nn.Sequential(nn.Conv2d(dim, ch, 3, 1, 1), nn.ReLU(), nn.ConvTranspose2d(ch, ch, 4, 2, 1), nn.ReLU(),
                                 nn.Upsample(scale_factor=2), nn.Conv2d(ch, 1, 3, 1, 1))

    def forward(self, x, book):
        h = self.enc(x)
        z = h.permute(0, 2, 3, 1).reshape(-1, h.shape[1])
        index = book.assign(z.detach())
        q = book.codes[index]
        commit = F.mse_loss(z, q)
        st = (z + (q - z).detach()).view(h.shape[0], h.shape[2], h.shape[3], -1).permute(0, 3, 1, 2)
        return self.dec(st), commit, z.detach(), index


def strokes(n=1536, size=32, seed=18):
    g = torch.Generator().manual_seed(seed)
    grid = torch.linspace(-1, 1, size)
    angle = torch.rand(n, generator=g) * 3.1416
    shift = torch.rand(n, generator=g) - 0.5
    d = angle.cos()[:, None, None] * grid[:, None] + angle.sin()[:, None, None] * grid[None, :] - shift[:, None, None]
    return TensorDataset(torch.exp(-(d / 0.12) ** 2).unsqueeze(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--codes", type=int, default=64)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(26)
    book = EmaCodebook(args.codes, 24)
    model = DDP(AutoEncoder())
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    data = strokes()
    sampler = DistributedSampler(data, world, rank, seed=7)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            recon, commit, z, index = model(x, book)
            mse = F.mse_loss(recon, x)
            opt.zero_grad(set_to_none=True)
            (mse + 0.25 * commit).backward()
            opt.step()
            book.follow(z, index, rank, world)
        if rank == 0:
            used = int((book.mass > 0.5).sum())
            print(f"epoch {epoch} mse {mse.item():.4f} commit {commit.item():.4f} codes in use {used}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
