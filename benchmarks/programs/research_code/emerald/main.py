"""Conditional GAN on small glyph images with generator EMA, R1 penalty and truncated sampling."""
import argparse
import copy
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from glyphs import GlyphSet
from models import Critic, Generator


@dataclass
class Config:
    steps: int = 60
    batch: int = 24
    z_dim: int = 24
    classes: int = 5
    lr_g: float = 1e-3
    lr_d: float = 1e-3
    ema_kimg: float = 0.5
    r1_gamma: float = 1.0
    r1_every: int = 8
    mix_prob: float = 0.3
    eval_every: int = 20
    seed: int = 11
    out: str = "gan_out"


class InfiniteLoader:
    def __init__(self, loader, sampler):
        self.loader, self.sampler, self.epoch = loader, sampler, 0

    def __iter__(self):
        while True:
            self.sampler.set_epoch(self.epoch)
            yield from self.loader
            self.epoch += 1


class GANTrainer:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        gen = Generator(cfg.z_dim, cfg.classes)
        critic = Critic(cfg.classes)
        self.ema = copy.deepcopy(gen).eval().requires_grad_(False)
        self.G = DistributedDataParallel(gen)
        self.D = DistributedDataParallel(critic)
        self.opt_g = torch.optim.Adam(self.G.parameters(), lr=cfg.lr_g, betas=(0.0, 0.99))
        self.opt_d = torch.optim.Adam(self.D.parameters(), lr=cfg.lr_d, betas=(0.0, 0.99))
        ds = GlyphSet(480, cfg.classes, seed=cfg.seed)
        sampler = DistributedSampler(ds, shuffle=True, seed=cfg.seed, drop_last=True)
        loader = DataLoader(ds, batch_size=cfg.batch, sampler=sampler, drop_last=True)
        self.data = iter(InfiniteLoader(loader, sampler))
        self.noise = torch.Generator().manual_seed(cfg.seed * 1000 + self.rank)
        self.history = []

    def latent(self, n):
        z = torch.randn(n, self.cfg.z_dim, generator=self.noise)
        y = torch.randint(0, self.cfg.classes, (n,), generator=self.noise)
        return z, y

    def step_d(self, real, labels, it):
        z, y = self.latent(len(real))
        with torch.no_grad():
            fake = self.G(z, y)
        self.opt_d.zero_grad(set_to_none=True)
        score = self.D(torch.cat([real, fake]), torch.cat([labels, y]))
        s_real, s_fake = score.split([len(real), len(fake)])
        loss = F.softplus(-s_real).mean() + F.softplus(s_fake).mean()
        loss.backward()
        if it % self.cfg.r1_every == 0:
            self.opt_d_penalty(real, labels)
        self.opt_d.step()
        return loss.detach()

    def opt_d_penalty(self, real, labels):
        """Finite-difference flavour of R1, second pass through the critic."""
        eps = 0.1
        d = torch.randn(real.shape, generator=self.noise) * eps
        delta = self.D(torch.cat([real + d, real - d]), labels.repeat(2))
        a, b = delta.chunk(2)
        pen = ((a - b) / (2 * eps)).pow(2).mean() * self.cfg.r1_gamma
        pen.backward()

    def step_g(self, n):
        z, y = self.latent(n)
        z2, _ = self.latent(n)
        mix = torch.rand(n, 1, generator=self.noise) < self.cfg.mix_prob
        self.opt_g.zero_grad(set_to_none=True)
        fake = self.G(z, y, z_mix=z2, mix=mix)
        loss = F.softplus(-self.D.module(fake, y)).mean()
        loss.backward()
        self.opt_g.step()
        return loss.detach()

    @torch.no_grad()
    def update_ema(self):
        nimg = self.cfg.ema_kimg * 1000
        beta = 0.5 ** (self.cfg.batch * self.world / max(nimg, 1e-8))
        for a, b in zip(self.ema.parameters(), self.G.module.parameters()):
            a.copy_(b.lerp(a, beta))

    @torch.no_grad()
    def evaluate(self):
        z, y = self.latent(128)
        x = self.ema(z, y).flatten(1)
        stats = torch.stack([x.mean(), x.std(0).mean()])
        dist.all_reduce(stats)
        return (stats / self.world).tolist()

    def run(self):
        acc = torch.zeros(2)
        for it in range(1, self.cfg.steps + 1):
            real, labels = next(self.data)
            ld = self.step_d(real, labels, it)
            lg = self.step_g(len(real))
            self.update_ema()
            acc += torch.stack([ld, lg])
            if it % self.cfg.eval_every == 0:
                dist.all_reduce(acc)
                d, g = (acc / (self.cfg.eval_every * self.world)).tolist()
                m, s = self.evaluate()
                self.history.append(dict(it=it, d=d, g=g, mean=m, std=s))
                acc.zero_()
                if self.rank == 0:
                    print(f"it {it:4d} D {d:.3f} G {g:.3f} mean {m:.3f} std {s:.3f}", flush=True)
                    self.save(it)
        dist.barrier()

    def save(self, it):
        out = Path(self.cfg.out)
        out.mkdir(exist_ok=True, parents=True)
        torch.save(dict(G=self.G.module.state_dict(), D=self.D.module.state_dict(), ema=self.ema.state_dict(),
                        opt_g=self.opt_g.state_dict(), opt_d=self.opt_d.state_dict(), it=it), out / "ckpt.pt")
        (out / "log.json").write_text(json.dumps(dict(cfg=asdict(self.cfg), hist=self.history)))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    for k, v in asdict(Config()).items():
        ap.add_argument("--" + k.replace("_", "-"), type=type(v), default=v)
    cfg = Config(**vars(ap.parse_args()))
    dist.init_process_group("gloo")
    GANTrainer(cfg).run()
    dist.destroy_process_group()
