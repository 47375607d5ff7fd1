"""Trainer with statistics of weights and gradients on the first rank."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Histograms:
    """Collects fine histograms and quantiles of every tensor (kept: last ones only)."""

    def __init__(self, bins=256):
        self.bins = bins
        self.latest = {}

    def add(self, name, tensor):
        flat = tensor.detach().flatten().double()
        lo, hi = flat.min().item(), flat.max().item()
        counts = torch.histc(flat, self.bins, lo, hi + 1e-12)
        order = flat.sort().values
        q = order[(torch.linspace(0, 1, 101) * (len(order) - 1)).long()]
        self.latest[name] = (lo, hi, counts, q)

    def collect(self, model):
        for name, p in model.named_parameters():
            self.add("weight/" + name, p)
            if p.grad is not None:
                self.add("grad/" + name, p.grad)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        torch.manual_seed(15)
        self.net = nn.Sequential(
            nn.Linear(64, 384), nn.GELU(), nn.Linear(384, 384), nn.GELU(), nn.Linear(384, 10))
        self.ddp = DDP(self.net)
        self.opt = torch.optim.AdamW(self.ddp.parameters(), lr=args.lr)
        self.gen = torch.Generator().manual_seed(800 + self.rank)
        self.proj = torch.randn(64, 10, generator=torch.Generator().manual_seed(0))
        self.hist = Histograms() if self.rank == 0 else None

    def batch(self):
        x = torch.randn(self.args.batch, 64, generator=self.gen)
        return x, (x @ self.proj).argmax(1)

    def log(self, step, loss):
        if step % self.args.log_every:
            return
        if self.hist is not None:
            self.hist.collect(self.net)
        if self.rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

    def step(self, step):
        x, y = self.batch()
        loss = F.cross_entropy(self.ddp(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.log(step, loss)

    def run(self):
        begin = time.time()
        for step in range(self.args.steps):
            self.step(step)
        dist.barrier()
        if self.rank == 0:
            print(f"{self.args.steps} steps in {time.time() - begin:.1f} s")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--log-every", type=int, default=20)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    Trainer(args).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
