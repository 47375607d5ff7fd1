"""Trains until done or until the scheduler announces that the node will be taken away."""
import argparse
import logging
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

log = logging.getLogger("job")

# the local scheduler daemon: gives notice to one process of the job
DAEMON = "import os, signal, sys, time; time.sleep({0}); os.kill({1}, signal.SIGUSR1)"


@dataclass
class Config:
    n: int = 4000
    features: int = 48
    batch: int = 20
    epochs: int = 40
    lr: float = 2e-3
    notice_after: float = 3.0
    seed: int = 61


class Notice:
    def __init__(self):
        self.given = False
        signal.signal(signal.SIGUSR1, self._on_signal)

    def _on_signal(self, signum, frame):
        self.given = True


class Gated(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.value = nn.Linear(features, 64)
        self.gate = nn.Linear(features, 64)
        self.norm = nn.LayerNorm(64)
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        return self.out(self.norm(self.value(x) * torch.sigmoid(self.gate(x)))).squeeze(-1)


def make_data(cfg):
    g = torch.Generator().manual_seed(cfg.seed)
    x = torch.randn(cfg.n, cfg.features, generator=g)
    y = x[:, 0] * x[:, 1] + torch.tanh(x[:, 2]) + 0.1 * torch.randn(cfg.n, generator=g)
    return TensorDataset(x, y)


class Job:
    def __init__(self, cfg, folder):
        self.cfg, self.folder = cfg, folder
        self.rank = dist.get_rank()
        torch.manual_seed(cfg.seed)
        self.notice = Notice()
        data = make_data(cfg)
        self.sampler = DistributedSampler(data, seed=cfg.seed)
        self.loader = DataLoader(data, cfg.batch, sampler=self.sampler)
        self.model = DDP(Gated(cfg.features))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.position = (0, 0)

    def should_stop(self):
        return self.notice.given

    def save(self):
        """Weights once, plus what every rank needs in order to go on where it was."""
        mine = {"rank": self.rank, "position": self.position, "rng": torch.get_rng_state()}
        rows = [None] * dist.get_world_size()
        dist.all_gather_object(rows, mine)
        if self.rank == 0:
            torch.save({"model": self.model.module.state_dict(), "opt": self.opt.state_dict(),
                        "ranks": rows}, self.folder / "resume.pt")
            log.info("state at epoch %d step %d saved", *self.position)

    def epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        total = 0.0
        for step, (x, y) in enumerate(self.loader):
            loss = F.smooth_l1_loss(self.model(x), y)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
            self.opt.step()
            total += loss.item()
            self.position = (epoch, step)
            if self.should_stop():
                return None
        return total / len(self.loader)

    def run(self):
        for epoch in range(self.cfg.epochs):
            mean = self.epoch(epoch)
            if mean is None:
                log.info("asked to leave")
                break
            log.info("epoch %d loss %.4f", epoch, mean)
        self.save()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=40)
    ap.add_argument("--notice-after", type=float, default=3.0)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format=f"r{rank} %(message)s")
    cfg = Config(epochs=args.epochs, notice_after=args.notice_after)
    folder = Path(tempfile.mkdtemp(prefix="job_")) if rank == 0 else None
    job = Job(cfg, folder)
    daemon = None
    if rank == 0 and cfg.notice_after > 0:
        code = DAEMON.format(cfg.notice_after, os.getpid())
        daemon = subprocess.Popen([sys.executable, "-S", "-c", code])
    job.run()
    if daemon is not None:
        daemon.wait()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
