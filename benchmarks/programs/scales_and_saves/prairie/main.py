"""Small conditional GAN on two-tone stripe textures."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

SIZE, KINDS, LATENT = 16, 4, 12


def textures(n):
    g = torch.Generator().manual_seed(70)
    kind = torch.randint(0, KINDS, (n,), generator=g)
    phase = torch.rand(n, 1, 1, generator=g) * 6.28
    yy, xx = torch.meshgrid(torch.arange(SIZE).float(), torch.arange(SIZE).float(), indexing="ij")
    angle = kind.float()[:, None, None] * torch.pi / KINDS
    img = torch.sin((xx * angle.cos() + yy * angle.sin()) * 1.1 + phase)
    return TensorDataset(img[:, None], kind)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(KINDS, LATENT)
        self.fc = nn.Linear(2 * LATENT, 32 * 16)
        self.up = nn.Sequential(
            nn.Upsample(scale_factor=2), nn.Conv2d(32, 16, 3, padding=1), nn.ReLU(),
            nn.Upsample(scale_factor=2), nn.Conv2d(16, 1, 3, padding=1), nn.Tanh())

    def forward(self, z, k):
        return self.up(torch.relu(self.fc(torch.cat([z, self.emb(k)], 1))).view(-1, 32, 4, 4))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Flatten())
        self.score = nn.Linear(32 * 16, 1)
        self.emb = nn.Embedding(KINDS, 32 * 16)

    def forward(self, x, k):
        h = self.body(x)
        return self.score(h).squeeze(1) + (self.emb(k) * h).sum(1) / 16


@torch.no_grad()
def contact_sheet(gen, z, k, rank, world):
    """Every process renders its rows of one and the same sheet; rank 0 pastes them together."""
    rows = gen(z[rank::world], k[rank::world])
    sheets = [torch.empty_like(rows) for _ in range(world)]
    dist.all_gather(sheets, rows)
    out = torch.empty(len(z), 1, SIZE, SIZE)
    for r in range(world):
        out[r::world] = sheets[r]
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=123)
    ap.add_argument("--samples", default="samples")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(args.seed)
    G, D = DDP(Generator()), DDP(Critic())
    # the sheet is compared from epoch to epoch, so its codes are drawn once and alike everywhere
    sheet_z = torch.randn(16, LATENT, generator=torch.Generator().manual_seed(args.seed))
    sheet_k = torch.arange(16) % KINDS
    noise = torch.Generator().manual_seed(args.seed * 1000 + rank)
    opt_g = torch.optim.Adam(G.parameters(), lr=args.lr, betas=(0.0, 0.99))
    opt_d = torch.optim.Adam(D.parameters(), lr=args.lr, betas=(0.0, 0.99))
    data = textures(1024)
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        sums = torch.zeros(3, dtype=torch.float64)
        for real, kind in loader:
            z = torch.randn(len(real), LATENT, generator=noise)
            with torch.no_grad():
                fake = G(z, kind)
            both = D(torch.cat([real, fake]), torch.cat([kind, kind]))
            s_real, s_fake = both.chunk(2)
            loss_d = F.softplus(-s_real).mean() + F.softplus(s_fake).mean()
            opt_d.zero_grad()
            loss_d.backward()
            opt_d.step()

            D.requires_grad_(False)
            z = torch.randn(len(real), LATENT, generator=noise)
            loss_g = F.softplus(-D.module(G(z, kind), kind)).mean()
            opt_g.zero_grad()
            loss_g.backward()
            opt_g.step()
            D.requires_grad_(True)
            sums += torch.tensor([loss_d.item(), loss_g.item(), 1.0], dtype=torch.float64)
        dist.all_reduce(sums)
        sheet = contact_sheet(G.module, sheet_z, sheet_k, rank, world)
        if rank == 0:
            os.makedirs(args.samples, exist_ok=True)
            torch.save(sheet, os.path.join(args.samples, f"sheet_{epoch:03d}.pt"))
            print(f"epoch {epoch} D {sums[0] / sums[2]:.3f} G {sums[1] / sums[2]:.3f} "
                  f"sheet std {sheet.std():.3f}", flush=True)

    if rank == 0:
        torch.save({"G": G.module.state_dict(), "D": D.module.state_dict()},
                   os.path.join(args.samples, "gan.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
