import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Ring(Dataset):
    def __init__(self, n=1024):
        g = torch.Generator().manual_seed(15)
        angle = torch.rand(n, generator=g) * 6.2832
        self.points = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(n, 2, generator=g)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, i):
        return self.points[i]


def generator_net(latent):
    return nn.Sequential(nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def critic_net():
    return nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))


def critic_step(critic, maker, opt, real, noise):
    with torch.no_grad():
        fake = maker.module(noise)
    scores = critic(torch.cat([real, fake]))
    labels = torch.cat([torch.ones(len(real), 1), torch.zeros(len(fake), 1)])
    loss = F.binary_cross_entropy_with_logits(scores, labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()


def maker_step(critic, maker, opt, noise):
    critic.requires_grad_(False)
    scores = critic.module(maker(noise))
    loss = F.softplus(-scores).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    critic.requires_grad_(True)
    return loss.detach()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--latent", type=int, default=6)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    maker, critic = DDP(generator_net(args.latent)), DDP(critic_net())
    opt_m = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.99))
    opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.99))
    noise = torch.Generator().manual_seed(500 + rank)
    data = Ring()
    sampler = DistributedSampler(data, shuffle=True, seed=9)
    loader = DataLoader(data, batch_size=32, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for real in loader:
            lc = critic_step(critic, maker, opt_c, real, torch.randn(len(real), args.latent, generator=noise))
            lm = maker_step(critic, maker, opt_m, torch.randn(len(real), args.latent, generator=noise))
        if rank == 0:
            print(f"epoch {epoch} critic {lc.item():.3f} maker {lm.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
