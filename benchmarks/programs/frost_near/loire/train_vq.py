import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from quantizer import EMAQuantizer


class Spectra(Dataset):
    """Synthetic emission spectra: a few lines at catalogued positions."""

    def __init__(self, n=1440, bins=64):
        g = torch.Generator().manual_seed(8)
        grid = torch.arange(bins, dtype=torch.float32)
        centres = torch.rand(12, 3, generator=g) * bins
        kind = torch.randint(0, 12, (n,), generator=g)
        lines = torch.exp(-0.5 * ((grid[None, None] - centres[kind][:, :, None]) / 2.0) ** 2)
        self.x = lines.sum(1) + 0.05 * torch.randn(n, bins, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i]


class VQAutoencoder(nn.Module):
    def __init__(self, bins=64, dim=8, slots=4, codes=32):
        super().__init__()
        self.dim, self.slots = dim, slots
        self.enc = nn.Sequential(nn.Linear(bins, 64), nn.SiLU(), nn.Linear(64, dim * slots))
        self.vq = EMAQuantizer(codes, dim)
        self.dec = nn.Sequential(nn.Linear(dim * slots, 64), nn.SiLU(), nn.Linear(64, bins))

    def forward(self, x):
        z = self.enc(x).view(len(x), self.slots, self.dim)
        q, commit, codes = self.vq(z)
        return self.dec(q.flatten(1)), commit, codes


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--beta", type=float, default=0.25)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = Spectra()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    model = DDP(VQAutoencoder())
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        running = torch.zeros(2)
        for x in loader:
            rec, commit, codes = model(x)
            mse = F.mse_loss(rec, x)
            opt.zero_grad()
            (mse + args.beta * commit).backward()
            opt.step()
            running += torch.stack([mse.detach(), commit.detach()])
        running /= len(loader)
        dist.all_reduce(running)
        if rank == 0:
            used = int((model.module.vq.cluster_size > 0.5).sum())
            print(f"epoch {epoch} mse {running[0] / world:.4f} commit {running[1] / world:.4f} codes {used}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
