"""Two-dimensional layout (replica x model) training on packed documents."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn as nn

from packing import PackedDocs
from parallel import ParallelContext, SplitMLP, StepGate, average_gradients

log = logging.getLogger("packed")


class Net(nn.Module):
    def __init__(self, dim, hidden, depth, ctx):
        super().__init__()
        self.layers = nn.Sequential(*[SplitMLP(dim, hidden, ctx) for _ in range(depth)])
        self.head = nn.Linear(dim, 12)

    def forward(self, x):
        return self.head(self.layers(x))


def train_epoch(net, opt, data, gate, ctx, epoch):
    it = iter(data)
    batch = next(it, None)
    steps, total, start = 0, 0.0, time.time()
    while gate.open(batch is not None):
        x, y = batch
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        average_gradients(net.parameters(), ctx)
        opt.step()
        steps += 1
        total += loss.item()
        batch = next(it, None)
        if steps % 20 == 0 and dist.get_rank() == 0:
            log.info("epoch %d step %3d  loss %.4f", epoch, steps, loss.item())
    return steps, total / max(steps, 1), time.time() - start


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--docs", type=int, default=5800)
    p.add_argument("--row-len", type=int, default=1024)
    p.add_argument("--rows", type=int, default=4)
    p.add_argument("--dim", type=int, default=128)
    p.add_argument("--hidden", type=int, default=512)
    p.add_argument("--depth", type=int, default=3)
    p.add_argument("--tp", type=int, default=2)
    p.add_argument("--lr", type=float, default=5e-4)
    args = p.parse_args()

    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    ctx = ParallelContext(args.tp)

    torch.manual_seed(11)
    net = Net(args.dim, args.hidden, args.depth, ctx)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    data = PackedDocs(args.docs, args.row_len, args.rows, args.dim, ctx.replica_rank, ctx.replicas, seed=4)
    gate = StepGate(ctx.model_group)

    for epoch in range(args.epochs):
        steps, mean, took = train_epoch(net, opt, data, gate, ctx, epoch)
        stats = torch.tensor([float(steps), mean])
        dist.all_reduce(stats)
        stats /= dist.get_world_size()
        if dist.get_rank() == 0:
            log.info("epoch %d  steps %.1f  loss %.4f  %.1fs", epoch, stats[0], stats[1], took)

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
