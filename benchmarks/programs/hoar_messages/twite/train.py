import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

from engine import StageEngine


def dataset(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 16, generator=g)
    return TensorDataset(x, torch.stack([x.prod(1).tanh(), x.mean(1)], 1))


def stage_module(rank, world, width):
    d_in = 16 if rank == 0 else width
    d_out = 2 if rank == world - 1 else width
    layers = [nn.Linear(d_in, width), nn.GELU(), nn.Linear(width, d_out)]
    return nn.Sequential(*layers)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=25)
    parser.add_argument("--width", type=int, default=40)
    parser.add_argument("--eval-batches", type=int, default=8)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    module = stage_module(rank, world, args.width)
    opt = torch.optim.Adam(module.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0)
    engine = StageEngine(module, rank, world, args.width, opt)
    train_loader = DataLoader(dataset(310, 1), batch_size=args.batch_size)
    val_loader = DataLoader(dataset(250, 2), batch_size=args.batch_size)

    for epoch in range(args.epochs):
        losses = [engine.train_batch(x, y) for x, y in train_loader]
        if engine.last:
            print(f"epoch {epoch} train {sum(losses) / len(losses):.4f}", flush=True)
        val = engine.evaluate(val_loader, args.eval_batches)
        sched.step(val)
        if engine.last:
            print(f"epoch {epoch} val {val:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
