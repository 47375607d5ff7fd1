"""Preemptible training of a small forecasting model; every allocation runs a fixed number of steps."""
import argparse
import logging
import os
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from resumable import ResumableSampler
from series import WindowedSeries

log = logging.getLogger("forecast")


class Forecaster(nn.Module):
    def __init__(self, channels, horizon, hidden=40):
        super().__init__()
        self.enc = nn.GRU(channels, hidden, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.dec = nn.Linear(hidden, horizon * channels)
        self.shape = (horizon, channels)

    def forward(self, x):
        h = self.enc(x)[1][-1]
        return self.dec(self.drop(h)).view(-1, *self.shape)


class Job:
    """State of one allocation: everything is rebuilt from scratch and restored from the checkpoint."""

    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        seed = args.seed + self.rank
        random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
        self.ds = WindowedSeries(args.windows, seed=args.seed)
        self.val = WindowedSeries(128, seed=args.seed + 1)
        self.sampler = ResumableSampler(len(self.ds), self.rank, self.world, seed=args.seed)
        self.loader = DataLoader(self.ds, batch_size=args.batch, sampler=self.sampler, drop_last=True)
        self.model = DDP(Forecaster(self.ds.channels, self.ds.horizon))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.sched = torch.optim.lr_scheduler.OneCycleLR(self.opt, args.lr, total_steps=args.total_steps)
        self.step, self.epoch = 0, 0
        self.ema_loss = None

    # ---- checkpoint -------------------------------------------------
    def save(self):
        rng = {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}
        rngs = [None] * self.world
        dist.all_gather_object(rngs, rng)
        if self.rank == 0:
            os.makedirs(self.args.dir, exist_ok=True)
            tmp = os.path.join(self.args.dir, "state.tmp")
            torch.save({"model": self.model.module.state_dict(), "opt": self.opt.state_dict(),
                        "sched": self.sched.state_dict(), "sampler": self.sampler.state_dict(), "step": self.step,
                        "epoch": self.epoch, "ema": self.ema_loss, "rng": rngs}, tmp)
            os.replace(tmp, os.path.join(self.args.dir, "state.pt"))
        dist.barrier()

    def restore(self):
        path = os.path.join(self.args.dir, "state.pt")
        if not os.path.exists(path):
            return False
        s = torch.load(path, map_location="cpu", weights_only=False)
        self.model.module.load_state_dict(s["model"])
        self.opt.load_state_dict(s["opt"])
        self.sched.load_state_dict(s["sched"])
        self.sampler.load_state_dict(s["sampler"])
        self.step, self.epoch, self.ema_loss = s["step"], s["epoch"], s["ema"]
        rng = s["rng"][self.rank]
        torch.set_rng_state(rng["torch"]), np.random.set_state(rng["numpy"]), random.setstate(rng["python"])
        return True

    # ---- work -------------------------------------------------------
    def train_step(self, x, y):
        self.model.train()
        loss = nn.functional.smooth_l1_loss(self.model(x), y)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.sched.step()
        self.step += 1
        self.ema_loss = loss.item() if self.ema_loss is None else 0.95 * self.ema_loss + 0.05 * loss.item()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        t = torch.zeros(2)
        for i in range(self.rank, len(self.val), self.world):
            x, y = self.val[i]
            t += torch.stack([nn.functional.l1_loss(self.model.module(x[None]), y[None]), torch.tensor(1.0)])
        dist.all_reduce(t)
        return (t[0] / t[1]).item()

    def run(self):
        resumed = self.restore()
        budget = self.args.steps_per_allocation
        log.info("allocation starts at step %d epoch %d (%s)", self.step, self.epoch, "resumed" if resumed else "fresh")
        while self.step < self.args.total_steps:
            self.sampler.set_epoch(self.epoch)
            for x, y in self.loader:
                self.train_step(x, y)
                self.sampler.advance(len(x))
                budget -= 1
                if budget == 0 or self.step >= self.args.total_steps:
                    self.save()
                    return self.step >= self.args.total_steps
            self.epoch += 1
            log.info("epoch %d done, step %d, train %.4f val %.4f", self.epoch, self.step, self.ema_loss, self.validate())
        self.save()
        return True


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--windows", type=int, default=512)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--lr", type=float, default=5e-3)
    p.add_argument("--total-steps", type=int, default=48)
    p.add_argument("--steps-per-allocation", type=int, default=22)
    p.add_argument("--dir", default="forecast_job")
    p.add_argument("--seed", type=int, default=31)
    args = p.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR, format="%(message)s")
    state = os.path.join(args.dir, "state.pt")
    if dist.get_rank() == 0 and os.path.exists(state):
        os.remove(state)
    dist.barrier()
    while True:
        job = Job(args)
        if job.run():
            break
    log.info("finished: step %d val %.4f", job.step, job.validate())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
