"""Streaming reader with a background thread feeding a hand-averaged training loop."""
import argparse
import queue
import threading
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Prefetcher:
    """Decodes records of one shard in a thread and keeps a few batches ready."""

    def __init__(self, shard, batch_size, depth=4):
        self.shard, self.batch_size = shard, batch_size
        self.buffer = queue.Queue(maxsize=depth)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _decode(self, lo):
        x, y = self.shard
        time.sleep(0.001)
        return x[lo:lo + self.batch_size], y[lo:lo + self.batch_size]

    def _work(self):
        for lo in range(0, len(self.shard[0]) - self.batch_size + 1, self.batch_size):
            if self.stop.is_set():
                return
            self.buffer.put(self._decode(lo))
        self.buffer.put(None)

    def __iter__(self):
        while True:
            item = self.buffer.get()
            if item is None:
                return
            yield item

    def close(self):
        self.stop.set()
        while self.thread.is_alive():
            try:
                self.buffer.get(timeout=0.05)
            except queue.Empty:
                pass
        self.thread.join()


def shard_for(rank, dim, batch):
    """Shards come from different days and have different lengths."""
    n = batch * (12 + 9 * rank)
    g = torch.Generator().manual_seed(40 + rank)
    x = torch.randn(n, dim, generator=g)
    y = torch.sin(x.sum(1, keepdim=True))
    return x, y


def average_grads(model, world):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    flat /= world
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--dim", type=int, default=10)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(args.dim, 64), nn.Tanh(), nn.Linear(64, 1))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    shard = shard_for(rank, args.dim, args.batch)

    have = torch.tensor([len(shard[0]) // args.batch])
    dist.all_reduce(have, op=dist.ReduceOp.MIN)
    steps = int(have)
    for epoch in range(args.epochs):
        reader = Prefetcher(shard, args.batch)
        for i, (x, y) in enumerate(reader):
            if i == steps:
                break
            loss = F.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            average_grads(model, world)
            opt.step()
            time.sleep(0.01)
        reader.close()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch}: {total.item() / world:.4f} ({steps} steps)", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
