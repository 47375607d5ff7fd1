import argparse
import logging
import math
import time

import torch
import torch.distributed as dist
import torch.nn as nn

from agree import any_rank, mean_over_ranks, retry

log = logging.getLogger("opal")


class FlakyReader:
    def __init__(self, rank, pause):
        self.rank, self.pause, self.calls = rank, pause, 0
        self.gen = torch.Generator().manual_seed(rank)

    def __call__(self):
        self.calls += 1
        if self.rank == 1 and self.calls % 11 == 0:
            raise OSError("stale file handle")
        x = torch.randn(16, 6, generator=self.gen)
        if self.rank == 2 and self.calls in (5, 23):
            x[0, 0] = math.nan
        return x, x.abs().sum(1, keepdim=True)


class Trainer:
    def __init__(self, args):
        self.args, self.rank = args, dist.get_rank()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 1))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=5e-3)
        self.reader = FlakyReader(self.rank, args.pause)
        self.best, self.bad_epochs, self.skipped = float("inf"), 0, 0

    def on_error(self, attempt, err):
        log.warning("read failed (%s), attempt %d", err, attempt)
        time.sleep(self.args.pause)

    def step(self):
        loss = None
        try:
            x, y = retry(self.reader, 3, self.on_error)
            loss = nn.functional.l1_loss(self.model(x), y)
            if not torch.isfinite(loss):
                raise FloatingPointError("loss is not finite")
            self.opt.zero_grad()
            loss.backward()
        except FloatingPointError as err:
            log.warning("skip: %s", err)
            loss = None
        if any_rank(loss is None):
            self.skipped += 1
            return None
        for p in self.model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        self.opt.step()
        return loss.item()

    def keep(self, epoch):
        if self.rank == 0:
            log.info("epoch %d is the best so far: %.4f", epoch, self.best)
        dist.barrier()

    def fit(self):
        for epoch in range(self.args.epochs):
            losses = [v for v in (self.step() for _ in range(self.args.steps)) if v is not None]
            value = mean_over_ranks(sum(losses) / len(losses))
            if value < self.best - self.args.min_delta:
                self.best, self.bad_epochs = value, 0
                self.keep(epoch)
            else:
                self.bad_epochs += 1
            out_of_time = self.rank == 0 and self.bad_epochs > self.args.patience
            if any_rank(out_of_time):
                log.info("stopping at epoch %d", epoch)
                break
        log.info("skipped %d", self.skipped)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=12)
    ap.add_argument("--steps", type=int, default=10)
    ap.add_argument("--pause", type=float, default=1.0)
    ap.add_argument("--patience", type=int, default=0)
    ap.add_argument("--min-delta", type=float, default=0.12)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO, format=f"[{dist.get_rank()}] %(message)s")
    Trainer(args).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
