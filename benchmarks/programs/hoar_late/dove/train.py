import argparse

import torch
import torch.distributed as dist
from torch import nn


class TwoStage:
    """Encoder on rank 0, head on rank 1. The number of micro-batches follows the epoch."""

    def __init__(self, args):
        self.rank = dist.get_rank()
        self.args = args
        if self.rank == 0:
            self.net = nn.Sequential(nn.Linear(12, args.hidden), nn.ReLU())
        else:
            self.net = nn.Linear(args.hidden, 1)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=2e-3)

    def micro_batches(self, epoch):
        n = torch.zeros(1, dtype=torch.long)
        if self.rank == 0:
            n += 2 if epoch < self.args.warmup else 6
        dist.broadcast(n, src=0)
        return int(n)

    def batch(self, seed):
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(self.args.batch, 12, generator=g)
        return x, x[:, :1] - x[:, 1:2]

    def encoder_step(self, chunks):
        outs = []
        for c in chunks:
            h = self.net(c)
            dist.send(h.detach(), 1)
            outs.append(h)
        for h in outs:
            g = torch.empty_like(h)
            dist.recv(g, 1)
            h.backward(g)
        return 0.0

    def head_step(self, chunks):
        hs, loss = [], 0.0
        for y in chunks:
            h = torch.empty(len(y), self.args.hidden)
            dist.recv(h, 0)
            hs.append((h.requires_grad_(), y))
        for h, y in hs:
            part = nn.functional.mse_loss(self.net(h), y, reduction="sum") / self.args.batch
            part.backward()
            dist.send(h.grad, 0)
            loss += part.item()
        return loss

    def epoch(self, epoch):
        n = self.micro_batches(epoch)
        loss = 0.0
        for step in range(self.args.steps):
            x, y = self.batch(epoch * 1000 + step)
            self.opt.zero_grad()
            loss = self.encoder_step(x.chunk(n)) if self.rank == 0 else self.head_step(y.chunk(n))
            self.opt.step()
        if self.rank == 1:
            print(f"epoch {epoch}: {n} micro-batches, loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--warmup", type=int, default=2)
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--hidden", type=int, default=32)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    run = TwoStage(args)
    for e in range(args.epochs):
        run.epoch(e)
    dist.barrier()
    dist.destroy_process_group()
