import argparse
import logging
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from models import Discriminator, Encoder, Generator

log = logging.getLogger("swap")


@dataclass
class Config:
    steps: int = 40
    batch: int = 8
    lr: float = 1e-3
    d_reg_every: int = 8
    r1: float = 1.0
    out: str = "runs"


def make_images(n=256, size=16, seed=0):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    cy, cx = torch.rand(2, n, 1, 1, generator=g) * 10 + 3
    r = torch.rand(n, 1, 1, generator=g) * 3 + 2
    disk = ((yy - cy) ** 2 + (xx - cx) ** 2 < r ** 2).float()
    img = disk * 1.6 - 0.8 + 0.05 * torch.randn(n, size, size, generator=g)
    return img.unsqueeze(1)


def requires_grad(module, flag):
    for p in module.parameters():
        p.requires_grad_(flag)


def d_logistic_loss(real_pred, fake_pred):
    return F.softplus(-real_pred).mean() + F.softplus(fake_pred).mean()


def g_nonsaturating_loss(fake_pred):
    return F.softplus(-fake_pred).mean()


class SwapTrainer:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        self.rank = dist.get_rank()
        torch.manual_seed(100)
        data = TensorDataset(make_images())
        self.sampler = DistributedSampler(data, shuffle=True, drop_last=True)
        self.loader = DataLoader(data, cfg.batch, sampler=self.sampler, drop_last=True)
        self.enc, self.gen = DDP(Encoder()), DDP(Generator())
        self.disc = DDP(Discriminator(), broadcast_buffers=False)
        self.enc_m = self.enc.module
        self.gen_m = self.gen.module
        self.disc_m = self.disc.module
        self.g_opt = torch.optim.Adam([*self.enc.parameters(), *self.gen.parameters()], lr=cfg.lr, betas=(0.0, 0.99))
        self.d_opt = torch.optim.Adam(self.disc.parameters(), lr=cfg.lr, betas=(0.0, 0.99))
        self.noise_gen = torch.Generator().manual_seed(500 + self.rank)
        self.epoch = 0

    def batches(self):
        while True:
            self.sampler.set_epoch(self.epoch)
            for (img,) in self.loader:
                yield img
            self.epoch += 1

    def swap(self, img):
        structure, texture = self.enc_m(img)
        half = img.size(0) // 2
        mixed = torch.cat([texture[half:], texture[:half]])
        return self.gen_m(torch.cat([structure, structure]), torch.cat([texture, mixed])).chunk(2)

    def d_step(self, img, step):
        requires_grad(self.disc, True)
        with torch.no_grad():
            _, mixed = self.swap(img)
        scores = self.disc_m(torch.cat([img, mixed]))
        real_pred, fake_pred = scores.chunk(2)
        loss = d_logistic_loss(real_pred, fake_pred)
        self.d_opt.zero_grad()
        loss.backward()
        self.d_opt.step()
        if step % self.cfg.d_reg_every == 0:
            self.d_regularize(img)
        return loss.item()

    def d_regularize(self, img):
        noise = torch.randn(img.shape, generator=self.noise_gen) * 0.1
        smooth = (self.disc(img + noise) - self.disc_m(img).detach()).pow(2).mean()
        self.d_opt.zero_grad()
        (self.cfg.r1 / 2 * smooth).backward()
        self.d_opt.step()

    def g_step(self, img):
        requires_grad(self.disc, False)
        recon, mixed = self.swap(img)
        adv = g_nonsaturating_loss(self.disc_m(mixed))
        loss = F.l1_loss(recon, img) + 0.2 * adv
        self.g_opt.zero_grad()
        loss.backward()
        self.g_opt.step()
        return loss.item()

    def train(self):
        it = self.batches()
        for step in range(1, self.cfg.steps + 1):
            img = next(it)
            d_loss = self.d_step(img, step)
            g_loss = self.g_step(img)
            if step % 10 == 0:
                mean = torch.tensor([d_loss, g_loss])
                dist.all_reduce(mean)
                mean /= dist.get_world_size()
                if self.rank == 0:
                    log.info("step %d d %.4f g %.4f", step, *mean.tolist())
        if self.rank == 0:
            self.save()

    def save(self):
        folder = Path(self.cfg.out) / Path(__file__).parent.name
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({"e": self.enc_m.state_dict(), "g": self.gen_m.state_dict(),
                    "d": self.disc_m.state_dict(), "g_opt": self.g_opt.state_dict(),
                    "d_opt": self.d_opt.state_dict()}, folder / "last.pt")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=Config.steps)
    parser.add_argument("--batch", type=int, default=Config.batch)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    SwapTrainer(Config(steps=args.steps, batch=args.batch)).train()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
