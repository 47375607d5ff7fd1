"""Adversarial generation of 8x8 textures: least-squares GAN, several critic updates per generator update."""
import argparse
import copy
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


@dataclass
class Config:
    epochs: int = 3
    batch: int = 32
    generator_every: int = 2
    z_dim: int = 12
    lr_generator: float = 1e-3
    lr_critic: float = 1e-3
    ema: float = 0.9
    seed: int = 55
    out: str = "runs/kythira"


class Textures(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        row = torch.arange(8.0).view(1, 8, 1)
        col = torch.arange(8.0).view(1, 1, 8)
        freq = 0.5 + torch.rand(n, 1, 1, generator=g)
        lean = torch.randint(0, 2, (n, 1, 1), generator=g).float() * 2 - 1
        phase = 6.2832 * torch.rand(n, 1, 1, generator=g)
        self.x = torch.sin(freq * (row + lean * col) + phase).unsqueeze(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i]


class Painter(nn.Module):
    def __init__(self, z_dim, ch=24):
        super().__init__()
        self.start = nn.Linear(z_dim, ch * 4)
        self.up1 = nn.ConvTranspose2d(ch, ch, 4, stride=2, padding=1)
        self.gn = nn.GroupNorm(4, ch)
        self.up2 = nn.ConvTranspose2d(ch, 1, 4, stride=2, padding=1)
        self.ch = ch

    def forward(self, z):
        h = F.relu(self.start(z)).view(-1, self.ch, 2, 2)
        return torch.tanh(self.up2(F.relu(self.gn(self.up1(h)))))


class Judge(nn.Module):
    def __init__(self, ch=24):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, ch, 3, stride=2, padding=1), nn.LeakyReLU(0.2),
                                 nn.Conv2d(ch, 2 * ch, 3, stride=2, padding=1), nn.LeakyReLU(0.2),
                                 nn.Flatten(), nn.Linear(8 * ch, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


def requires_grad(module, flag):
    for p in module.parameters():
        p.requires_grad_(flag)


class Studio:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        self.painter = DDP(Painter(cfg.z_dim))
        self.judge = DDP(Judge())
        self.slow = copy.deepcopy(self.painter.module)
        requires_grad(self.slow, False)
        self.opt_p = torch.optim.Adam(self.painter.parameters(), lr=cfg.lr_generator, betas=(0.5, 0.99))
        self.opt_j = torch.optim.Adam(self.judge.parameters(), lr=cfg.lr_critic, betas=(0.5, 0.99))
        self.z_stream = torch.Generator().manual_seed(cfg.seed * 10 + self.rank)
        data = Textures(1536, seed=cfg.seed)
        self.sampler = DistributedSampler(data, shuffle=True, seed=cfg.seed)
        self.loader = DataLoader(data, batch_size=cfg.batch, sampler=self.sampler)
        self.reference = Textures(512, seed=cfg.seed + 1).x

    def z(self, n):
        return torch.randn(n, self.cfg.z_dim, generator=self.z_stream)

    def judge_step(self, real):
        with torch.no_grad():
            fake = self.painter.module(self.z(len(real)))
        score_real, score_fake = self.judge(torch.cat([real, fake])).chunk(2)
        loss = 0.5 * ((score_real - 1).pow(2).mean() + score_fake.pow(2).mean())
        self.opt_j.zero_grad(set_to_none=True)
        loss.backward()
        self.opt_j.step()
        return loss.detach()

    def painter_step(self, n):
        requires_grad(self.judge.module, False)
        loss = 0.5 * (self.judge.module(self.painter(self.z(n))) - 1).pow(2).mean()
        self.opt_p.zero_grad(set_to_none=True)
        loss.backward()
        requires_grad(self.judge.module, True)
        self.opt_p.step()
        with torch.no_grad():
            for s, p in zip(self.slow.parameters(), self.painter.module.parameters()):
                s.lerp_(p, 1 - self.cfg.ema)
        return loss.detach()

    @torch.no_grad()
    def spectrum_gap(self):
        """Difference of mean power spectra between samples of all processes and reference textures."""
        fake = self.slow(self.z(256 // self.world))
        power = torch.fft.rfft2(fake).abs().pow(2).sum(0)
        dist.all_reduce(power)
        power /= (256 // self.world) * self.world
        target = torch.fft.rfft2(self.reference).abs().pow(2).mean(0)
        return (power - target).abs().mean().item()

    def run(self):
        tick = 0
        for epoch in range(self.cfg.epochs):
            self.sampler.set_epoch(epoch)
            sums = torch.zeros(4)
            for real in self.loader:
                tick += 1
                sums[0] += self.judge_step(real)
                sums[1] += 1
                if tick % self.cfg.generator_every == 0:
                    sums[2] += self.painter_step(len(real))
                    sums[3] += 1
            dist.all_reduce(sums)
            gap = self.spectrum_gap()
            if self.rank == 0:
                print(f"epoch {epoch} judge {sums[0] / sums[1]:.4f} painter {sums[2] / sums[3]:.4f} "
                      f"spectrum gap {gap:.3f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=Config.epochs)
    ns = ap.parse_args()
    dist.init_process_group("gloo")
    studio = Studio(Config(epochs=ns.epochs))
    studio.run()
    if studio.rank == 0:
        os.makedirs(studio.cfg.out, exist_ok=True)
        torch.save({"painter": studio.slow.state_dict(), "judge": studio.judge.module.state_dict()},
                   os.path.join(studio.cfg.out, "textures.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
