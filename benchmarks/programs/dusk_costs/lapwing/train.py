"""Elastic global batch on unequal hosts: each rank takes its share of the samples, gradients are weighted."""
import argparse
import logging
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from batching import ElasticBatch, NoiseScale, split_by_share

log = logging.getLogger("elastic")


class Net(nn.Module):
    def __init__(self, dim, hidden, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(dim, hidden), nn.LayerNorm(hidden), nn.GELU(),
                                  nn.Linear(hidden, hidden), nn.LayerNorm(hidden), nn.GELU())
        self.fc = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.fc(self.body(x))


class Stream:
    """Reads one global permutation; rank r takes its slice of every global batch."""

    def __init__(self, n, dim, classes, seed=0):
        g = torch.Generator().manual_seed(seed)
        teacher = torch.randn(dim, classes, generator=g)
        self.x = torch.randn(n, dim, generator=g)
        noisy = self.x @ teacher + 4.0 * torch.randn(n, classes, generator=g)
        self.y = noisy.argmax(1)
        self.order = torch.randperm(n, generator=g)
        self.pos = 0

    def take(self, parts, rank):
        total = sum(parts)
        if self.pos + total > len(self.order):
            return None
        start = self.pos + sum(parts[:rank])
        self.pos += total
        idx = self.order[start:start + parts[rank]]
        return self.x[idx], self.y[idx]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--samples", type=int, default=140000)
    ap.add_argument("--dim", type=int, default=256)
    ap.add_argument("--hidden", type=int, default=768)
    ap.add_argument("--classes", type=int, default=20)
    ap.add_argument("--start-batch", type=int, default=96)
    ap.add_argument("--max-batch", type=int, default=1536)
    ap.add_argument("--every", type=int, default=20)
    ap.add_argument("--shares", type=float, nargs="+", default=[1.0, 2.0], help="relative speed of each host")
    ap.add_argument("--lr", type=float, default=0.05)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    assert len(args.shares) == world, "one share per rank"
    torch.manual_seed(0)
    net = Net(args.dim, args.hidden, args.classes)
    params = list(net.parameters())
    opt = torch.optim.SGD(params, lr=args.lr, momentum=0.9)
    stream = Stream(args.samples, args.dim, args.classes)
    elastic, noise = ElasticBatch(args.start_batch, args.max_batch, args.every), NoiseScale()

    step, t0 = 0, time.perf_counter()
    while True:
        parts = split_by_share(elastic.size, args.shares)
        batch = stream.take(parts, rank)
        if batch is None:
            break
        x, y = batch
        loss = F.cross_entropy(net(x), y)
        grads = torch.autograd.grad(loss, params)
        flat = torch.cat([g.reshape(-1) for g in grads])
        local_sq = flat.square().sum().item()
        flat *= parts[rank] / elastic.size
        dist.all_reduce(flat)
        noise.update(local_sq, parts[rank], flat.square().sum().item(), elastic.size)
        for p, g in zip(params, flat.split([p.numel() for p in params])):
            p.grad = g.view_as(p)
        for group in opt.param_groups:
            group["lr"] = args.lr * (elastic.size / args.start_batch) ** 0.5
        opt.step()
        step += 1
        before = elastic.size
        elastic.propose(step, noise.value())
        if rank == 0 and (step % 20 == 0 or elastic.size != before):
            log.info("step %d seen %d batch %d parts %s loss %.4f noise %.0f %.1fs", step, stream.pos, elastic.size,
                     parts, loss.item(), noise.value(), time.perf_counter() - t0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
