"""Latent DiT training. The run is split in two phases (base, then a low learning rate
anneal with label dropout switched off); the second picks up the checkpoint of the first."""
import argparse
import logging
import os
import tempfile
from collections import OrderedDict
from copy import deepcopy

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from models import DiT, GaussianDiffusion

PHASES = [
    {"name": "base", "until": 90, "lr": 8e-4, "label_dropout": 0.1},
    {"name": "anneal", "until": 120, "lr": 2e-4, "label_dropout": 0.0},
]


@torch.no_grad()
def update_ema(ema_model, model, decay=0.98):
    ema_params = OrderedDict(ema_model.named_parameters())
    for name, param in model.named_parameters():
        ema_params[name].mul_(decay).add_(param.data, alpha=1 - decay)


def requires_grad(model, flag):
    for p in model.parameters():
        p.requires_grad = flag


def make_latents(n, classes=8, seed=3):
    g = torch.Generator().manual_seed(seed)
    proto = torch.randn(classes, 4, 16, 16, generator=torch.Generator().manual_seed(1))
    y = torch.randint(classes, (n,), generator=g)
    return TensorDataset(proto[y] + 0.3 * torch.randn(n, 4, 16, 16, generator=g), y)


@torch.no_grad()
def validate(model, diffusion, latents):
    """Denoising loss with fixed noise, split over the processes."""
    x, y = latents.tensors
    g = torch.Generator().manual_seed(0)
    t = torch.randint(diffusion.steps, (len(x),), generator=g)
    noise = torch.randn(x.shape, generator=g)
    part = slice(dist.get_rank(), None, dist.get_world_size())
    loss = diffusion.training_loss(model, x[part], y[part], t[part], noise[part])
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


class Trainer:
    def __init__(self, args, phase, resume=None):
        self.args, self.phase = args, phase
        torch.manual_seed(args.seed)
        model = DiT()
        self.ema = deepcopy(model)
        requires_grad(self.ema, False)
        self.step = 0
        self.opt_state = None
        if resume is not None:
            ckpt = torch.load(resume, map_location="cpu")
            model.load_state_dict(ckpt["model"])
            self.ema.load_state_dict(ckpt["ema"])
            self.opt_state = ckpt["opt"]
            self.step = ckpt["step"]
        self.model = DDP(model)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=phase["lr"], weight_decay=0)
        if self.opt_state is not None:
            self.opt.load_state_dict(self.opt_state)
            for group in self.opt.param_groups:
                group["lr"] = phase["lr"]
        self.diffusion = GaussianDiffusion()
        self.noise_gen = torch.Generator().manual_seed(args.seed + 1000 * (self.step + 1) + dist.get_rank())

    def save(self, path):
        if dist.get_rank() == 0:
            torch.save(
                {
                    "model": self.model.module.state_dict(),
                    "ema": self.ema.state_dict(),
                    "opt": self.opt.state_dict(),
                    "step": self.step,
                },
                path,
            )
        dist.barrier()

    def loss(self, x, y):
        g = self.noise_gen
        t = torch.randint(self.diffusion.steps, (len(x),), generator=g)
        noise = torch.randn(x.shape, generator=g)
        drop = torch.rand(len(y), generator=g) < self.phase["label_dropout"]
        return self.diffusion.training_loss(self.model, x, torch.where(drop, 8, y), t, noise)

    def fit(self, dataset, val):
        sampler = DistributedSampler(dataset, shuffle=True, seed=self.args.seed)
        loader = DataLoader(dataset, self.args.batch_size, sampler=sampler, drop_last=True)
        update_ema(self.ema, self.model.module, decay=0)
        self.model.train()
        self.ema.eval()
        logging.info("[%s] starting at step %d", self.phase["name"], self.step)
        while self.step < self.phase["until"]:
            sampler.set_epoch(self.step // len(loader))
            for x, y in loader:
                loss = self.loss(x, y)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                update_ema(self.ema, self.model.module)
                self.step += 1
                if self.step % 15 == 0:
                    logging.info("[%s] step %d loss %.4f", self.phase["name"], self.step, loss.item())
                if self.step >= self.phase["until"]:
                    break
        logging.info("[%s] val raw %.4f ema %.4f", self.phase["name"],
                     validate(self.model.module, self.diffusion, val), validate(self.ema, self.diffusion, val))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), f"dit-{os.environ.get('MASTER_PORT', 0)}"))
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--samples", type=int, default=1440)
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.WARNING, format="%(message)s")
    os.makedirs(args.out, exist_ok=True)
    dataset, val = make_latents(args.samples), make_latents(256, seed=17)
    resume = None
    for phase in PHASES:
        trainer = Trainer(args, phase, resume)
        trainer.fit(dataset, val)
        resume = os.path.join(args.out, f"{phase['name']}.pt")
        trainer.save(resume)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
