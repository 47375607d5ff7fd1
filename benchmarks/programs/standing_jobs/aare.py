"""Every rank is fed by a helper process which synthesises its samples."""
import argparse
import logging
import multiprocessing as mp
import queue as queue_mod
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("feed")


@dataclass
class Config:
    batches: int = 60
    batch: int = 32
    size: int = 12
    epochs: int = 2
    depth: int = 8
    lr: float = 4e-3
    warmup_seconds: tuple = (1.0, 8.5)
    seed: int = 141


def produce(out, cfg, rank, epoch_requests):
    """Helper process: loads its renderer once, then serves whole epochs on request."""
    time.sleep(cfg.warmup_seconds[rank % len(cfg.warmup_seconds)])
    grid = np.arange(cfg.size)
    while True:
        epoch = epoch_requests.get()
        if epoch is None:
            out.put(("bye", None, None))
            return
        rng = np.random.default_rng((cfg.seed, epoch, rank))
        for _ in range(cfg.batches):
            y = rng.integers(0, 4, size=cfg.batch)
            freq = 0.4 + 0.5 * y[:, None]
            wave = np.sin(freq * grid + rng.uniform(0, 6.28, size=(cfg.batch, 1)))
            x = wave + 0.2 * rng.normal(size=wave.shape)
            out.put(("batch", x.astype(np.float32), y.astype(np.int64)))
        out.put(("end", epoch, None))


class Feeder:
    def __init__(self, cfg, rank):
        ctx = mp.get_context("fork")
        self.out = ctx.Queue(cfg.depth)
        self.requests = ctx.Queue()
        self.proc = ctx.Process(target=produce, args=(self.out, cfg, rank, self.requests),
                                daemon=True)
        self.proc.start()

    def _next(self):
        while True:
            try:
                return self.out.get(timeout=2.0)
            except queue_mod.Empty:
                if not self.proc.is_alive():
                    raise RuntimeError(f"helper is gone, exit code {self.proc.exitcode}")

    def epoch(self, epoch):
        self.requests.put(epoch)
        while True:
            kind, a, b = self._next()
            if kind == "end":
                return
            yield torch.from_numpy(a), torch.from_numpy(b)

    def close(self):
        self.requests.put(None)
        while self._next()[0] != "bye":
            pass
        self.proc.join()


class WaveNet(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 12, 5, padding=2), nn.ReLU(),
                                  nn.Conv1d(12, 12, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(12 * size, 4)

    def forward(self, x):
        return self.head(self.conv(x[:, None]).flatten(1))


class Replicas:
    """Keeps plain modules equal: broadcast at the start, averaged gradients after that."""

    def __init__(self, model):
        self.model = model
        self.world = dist.get_world_size()
        for p in model.parameters():
            dist.broadcast(p.data, src=0)

    def reduce(self):
        for p in self.model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= self.world


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batches", type=int, default=60)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format=f"%(asctime)s r{rank} %(message)s")
    cfg = Config(epochs=args.epochs, batches=args.batches)
    feeder = Feeder(cfg, rank)
    torch.manual_seed(cfg.seed)
    model = WaveNet(cfg.size)
    replicas = Replicas(model)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.epochs * cfg.batches)

    for epoch in range(cfg.epochs):
        tally = torch.zeros(4)
        for x, y in feeder.epoch(epoch):
            out = model(x)
            loss = F.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            replicas.reduce()
            opt.step()
            sched.step()
            tally += torch.tensor([loss.item() * len(y), (out.argmax(1) == y).sum().item(),
                                   len(y), 1])
        dist.all_reduce(tally)
        log.info("epoch %d loss %.4f acc %.3f (%d batches)", epoch, tally[0] / tally[2],
                 tally[1] / tally[2], int(tally[3]))
    feeder.close()
    norm = torch.stack([p.detach().norm() for p in model.parameters()]).sum()
    norms = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(norms, norm)
    log.info("norms %s", [round(n.item(), 6) for n in norms])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
