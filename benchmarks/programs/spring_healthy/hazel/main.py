import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from schedule import Stage
from split import Block, LaterLinear


def build(rank, world, depth, dim, n_in, n_out):
    per = depth // world
    layers = [Block(dim, 100 + i) for i in range(rank * per, (rank + 1) * per)]
    if rank == 0:
        torch.manual_seed(1)
        layers.insert(0, LaterLinear(n_in, dim))
    if rank == world - 1:
        torch.manual_seed(2)
        layers.append(LaterLinear(dim, n_out))
    return nn.Sequential(*layers)


def batches(steps, n, n_in, n_out):
    g = torch.Generator().manual_seed(3)
    w1, w2 = torch.randn(n_in, 40, generator=g), torch.randn(40, n_out, generator=g) / 6
    for _ in range(steps):
        x = torch.randn(n, n_in, generator=g)
        yield x, torch.tanh(x @ w1 / 3) @ w2


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=76)
    ap.add_argument("--micro", type=int, default=8)
    ap.add_argument("--rows", type=int, default=48)
    ap.add_argument("--depth", type=int, default=6)
    ap.add_argument("--dim", type=int, default=128)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    assert args.depth % world == 0
    logging.basicConfig(level=logging.INFO if rank == world - 1 else logging.WARNING, format="%(asctime)s %(message)s")
    module = build(rank, world, args.depth, args.dim, 20, 5)
    stage = Stage(module, rank, world, args.micro, args.rows, args.dim, F.mse_loss)
    opt = torch.optim.Adam(module.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)

    for step, (x, y) in enumerate(batches(args.steps, args.micro * args.rows, 20, 5)):
        opt.zero_grad(set_to_none=True)
        loss = stage.run(x.chunk(args.micro) if stage.first else None, y.chunk(args.micro) if stage.last else None)
        sq = torch.stack([p.grad.square().sum() for p in module.parameters()]).sum()
        dist.all_reduce(sq)             # the norm is that of the whole pipeline
        scale = (1.0 / (sq.sqrt() + 1e-6)).clamp(max=1.0)
        for p in module.parameters():
            p.grad.mul_(scale)
        opt.step()
        sched.step()
        if step % 15 == 0 or step == args.steps - 1:
            logging.info("step %d loss %.6f grad norm %.5f", step, loss, sq.sqrt())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
