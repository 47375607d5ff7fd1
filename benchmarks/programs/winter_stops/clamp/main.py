"""Denoising autoencoder on synthetic spectra, with early stopping."""
import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from control import Plateau, RunControl

log = logging.getLogger("spectra")


def make_spectra(n, bins, seed):
    g = torch.Generator().manual_seed(seed)
    centre = torch.rand(n, 4, 1, generator=g) * bins
    width = 2 + 10 * torch.rand(n, 4, 1, generator=g)
    height = torch.rand(n, 4, 1, generator=g)
    grid = torch.arange(bins).float()
    clean = (height * torch.exp(-((grid - centre) / width) ** 2)).sum(1)
    noisy = clean + 0.15 * torch.randn(n, bins, generator=g)
    return TensorDataset(noisy, clean)


class AutoEncoder(nn.Module):
    def __init__(self, bins, hidden=512, code=24):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(bins, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, code))
        self.dec = nn.Sequential(nn.Linear(code, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, bins))

    def forward(self, x):
        return self.dec(self.enc(x))


@torch.no_grad()
def validate(model, loader):
    model.eval()
    total, n = 0.0, 0
    for noisy, clean in loader:
        total += nn.functional.mse_loss(model(noisy), clean, reduction="sum").item()
        n += clean.numel()
    model.train()
    return total / n


class Trainer:
    def __init__(self, args, rank, world):
        self.args, self.rank, self.world = args, rank, world
        torch.manual_seed(args.seed)
        self.model = DDP(AutoEncoder(args.bins))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        train = make_spectra(args.samples, args.bins, seed=1)
        self.sampler = DistributedSampler(train, world, rank, seed=args.seed, drop_last=True)
        self.loader = DataLoader(train, batch_size=args.batch, sampler=self.sampler, drop_last=True)
        self.val_loader = DataLoader(make_spectra(6000, args.bins, seed=2), batch_size=250)
        self.control = RunControl(args.out)
        self.plateau = Plateau(args.patience, args.min_delta)
        self.step = 0

    @property
    def is_main(self):
        return self.rank == 0

    def train_step(self, noisy, clean):
        loss = nn.functional.mse_loss(self.model(noisy), clean)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        self.step += 1
        return loss

    def should_stop(self):
        flag = torch.tensor([int(self.is_main and self.control.stop_requested())])
        dist.broadcast(flag, src=0)
        return bool(flag.item())

    def maybe_validate(self):
        if self.step % self.args.eval_every or not self.is_main:
            return
        val = validate(self.model.module, self.val_loader)
        log.info("step %4d  val %.5f  best %.5f", self.step, val, self.plateau.best)
        if self.plateau.update(val):
            self.control.request_stop(f"no improvement at step {self.step}")

    def fit(self):
        for epoch in range(self.args.epochs):
            self.sampler.set_epoch(epoch)
            for noisy, clean in self.loader:
                if self.should_stop():
                    log.info("rank %d leaving at step %d", self.rank, self.step)
                    return
                loss = self.train_step(noisy, clean)
                if self.is_main and self.step % 25 == 0:
                    log.info("step %4d  loss %.5f", self.step, loss.item())
                self.maybe_validate()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=12)
    p.add_argument("--samples", type=int, default=8000)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--bins", type=int, default=256)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--eval-every", type=int, default=40)
    p.add_argument("--patience", type=int, default=3)
    p.add_argument("--min-delta", type=float, default=1.5e-3)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", default=f"/tmp/spectra-{os.environ.get('MASTER_PORT', os.getpid())}")
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if rank == 0:
        RunControl(args.out).reset()
    dist.barrier()

    trainer = Trainer(args, rank, world)
    trainer.fit()

    dist.barrier()
    if trainer.is_main:
        torch.save(trainer.model.module.state_dict(), os.path.join(args.out, "final.pt"))
        log.info("saved after %d steps", trainer.step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
