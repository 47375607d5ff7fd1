import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.amp import GradScaler, autocast
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Blobs(Dataset):
    def __init__(self, n=1536, size=32, seed=0):
        g = torch.Generator().manual_seed(seed)
        yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        c = torch.rand(n, 2, generator=g) * 16 + 8
        r = torch.rand(n, generator=g) * 4 + 3
        d = (yy[None] - c[:, 0, None, None]) ** 2 + (xx[None] - c[:, 1, None, None]) ** 2
        self.images = (torch.exp(-d / (2 * r[:, None, None] ** 2)) * 2 - 1).unsqueeze(1)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i]


class Generator(nn.Module):
    def __init__(self, z=64, ch=48):
        super().__init__()
        self.ch = ch
        self.fc = nn.Linear(z, ch * 2 * 8 * 8)
        self.net = nn.Sequential(
            nn.GroupNorm(8, ch * 2), nn.ReLU(),
            nn.ConvTranspose2d(ch * 2, ch, 4, 2, 1), nn.GroupNorm(8, ch), nn.ReLU(),
            nn.ConvTranspose2d(ch, ch, 4, 2, 1), nn.GroupNorm(8, ch), nn.ReLU(),
            nn.Conv2d(ch, 1, 3, 1, 1), nn.Tanh())

    def forward(self, z):
        return self.net(self.fc(z).view(-1, self.ch * 2, 8, 8))


class Discriminator(nn.Module):
    def __init__(self, ch=48):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, ch, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(ch, ch * 2, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(ch * 2, ch * 2, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(ch * 2 * 16, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--z", type=int, default=64)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)
    gen, disc = DDP(Generator(args.z)), DDP(Discriminator())
    gen.register_comm_hook(None, default_hooks.fp16_compress_hook)
    disc.register_comm_hook(None, default_hooks.fp16_compress_hook)
    opt_g = torch.optim.Adam(gen.parameters(), lr=2e-4, betas=(0.5, 0.99))
    opt_d = torch.optim.Adam(disc.parameters(), lr=1e-4, betas=(0.5, 0.99))
    scaler_g = GradScaler("cpu", init_scale=2.0 ** 20, growth_interval=12)
    scaler_d = GradScaler("cpu", init_scale=2.0 ** 12, growth_interval=25)

    data = Blobs()
    sampler = DistributedSampler(data, world, rank, shuffle=True, seed=4, drop_last=True)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    noise = torch.Generator().manual_seed(1000 + rank)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for it, real in enumerate(loader):
            z = torch.randn(real.shape[0], args.z, generator=noise)
            with torch.no_grad(), autocast("cpu", torch.bfloat16):
                fake = gen(z)
            opt_d.zero_grad(set_to_none=True)
            with autocast("cpu", torch.bfloat16):
                scores = disc(torch.cat([real, fake.float()]))
            d_real, d_fake = scores.float().chunk(2)
            loss_d = F.softplus(-d_real).mean() + F.softplus(d_fake).mean()
            scaler_d.scale(loss_d).backward()
            scaler_d.step(opt_d)
            scaler_d.update()

            for p in disc.parameters():
                p.requires_grad_(False)
            opt_g.zero_grad(set_to_none=True)
            with autocast("cpu", torch.bfloat16):
                score = disc.module(gen(z))
            loss_g = F.softplus(-score.float()).mean()
            scaler_g.scale(loss_g).backward()
            scaler_g.step(opt_g)
            scaler_g.update()
            for p in disc.parameters():
                p.requires_grad_(True)

            if rank == 0 and it % 8 == 0:
                print(f"epoch {epoch} it {it:2d} D {loss_d.item():.3f} G {loss_g.item():.3f} "
                      f"scales {scaler_d.get_scale():.0f} / {scaler_g.get_scale():.3g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
