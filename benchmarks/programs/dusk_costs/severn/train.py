"""Autoencoder with bottleneck tokens: interleaved evaluation and background checkpoints."""
import argparse
import logging
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from checkpoint import ThreadedCheckpointer

log = logging.getLogger("ae")


class AutoEncoder(nn.Module):
    def __init__(self, dim, hidden, code):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(),
                                 nn.Linear(hidden, code))
        self.dec = nn.Sequential(nn.Linear(code, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(),
                                 nn.Linear(hidden, dim))

    def forward(self, x):
        return self.dec(self.enc(x))


class Manifold:
    """Points on a random smooth 8-dimensional surface."""

    def __init__(self, dim, seed):
        g = torch.Generator().manual_seed(0)
        self.a = torch.randn(8, 64, generator=g)
        self.b = torch.randn(64, dim, generator=g) / 8
        self.gen = torch.Generator().manual_seed(seed)

    def draw(self, n):
        return torch.tanh(torch.randn(n, 8, generator=self.gen) @ self.a / 3) @ self.b


@torch.no_grad()
def evaluate(net, data, batch):
    """Every rank scores its own share; the sums are reduced."""
    net.eval()
    stats = torch.zeros(2, dtype=torch.float64)
    for x in data.split(batch):
        stats += torch.tensor([F.mse_loss(net(x), x, reduction="sum").item(), x.numel()], dtype=torch.float64)
    dist.all_reduce(stats)
    net.train()
    return (stats[0] / stats[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--dim", type=int, default=512)
    ap.add_argument("--hidden", type=int, default=640)
    ap.add_argument("--code", type=int, default=16)
    ap.add_argument("--eval-every", type=int, default=30)
    ap.add_argument("--eval-size", type=int, default=3072)
    ap.add_argument("--save-every", type=int, default=20)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    net = AutoEncoder(args.dim, args.hidden, args.code)
    model = DDP(net)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=args.steps)
    train = Manifold(args.dim, seed=100 + rank)
    held_out = Manifold(args.dim, seed=7).draw(args.eval_size).chunk(world)[rank].clone()
    saver = ThreadedCheckpointer(args.out or tempfile.mkdtemp()) if rank == 0 else None

    t0 = time.perf_counter()
    for step in range(1, args.steps + 1):
        x = train.draw(args.batch)
        loss = F.mse_loss(model(x), x)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if saver and step % args.save_every == 0:
            saver.save(step, model=net, optimizer=opt, scheduler=sched)
        if step % args.eval_every == 0:
            score = evaluate(net, held_out, args.batch)
            if rank == 0:
                log.info("step %d train %.5f held-out %.5f %.1fs", step, loss.item(), score,
                         time.perf_counter() - t0)
    if saver:
        saver.wait()
        log.info("kept %s", [os.path.basename(p) for p in saver.written])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
