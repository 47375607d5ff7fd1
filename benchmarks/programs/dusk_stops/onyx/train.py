"""Three-stage GPipe-style training of an MLP-mixer-like regressor, stages on separate ranks."""
import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn

from pipe import Stage

log = logging.getLogger("pipe")


def make_split(n, dim, seed=11):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=g)
    w = torch.randn(dim, 1, generator=g) / dim ** 0.5
    return x, torch.tanh(x @ w)


def epoch_batches(n, batch_size, epoch):
    """The same order on every rank (seeded by the epoch)."""
    g = torch.Generator().manual_seed(1000 + epoch)
    return torch.randperm(n, generator=g).split(batch_size)


def build_module(rank, world, dim, hidden):
    torch.manual_seed(50 + rank)
    blocks = [nn.Linear(dim, hidden)] if rank == 0 else []
    for _ in range(3):
        blocks += [nn.LayerNorm(hidden), nn.Linear(hidden, hidden), nn.GELU()]
    if rank == world - 1:
        blocks.append(nn.Linear(hidden, 1))
    return nn.Sequential(*blocks)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--samples", type=int, default=5600)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--micro-batch", type=int, default=16)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--hidden", type=int, default=384)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"stage{rank} %(message)s")

    module = build_module(rank, world, args.dim, args.hidden)
    stage = Stage(module, rank, world, args.hidden, args.batch_size, args.micro_batch)
    opt = torch.optim.AdamW(module.parameters(), lr=args.lr)
    # only the ends of the pipe touch data
    x, y = make_split(args.samples, args.dim) if rank in (0, world - 1) else (None, None)

    for epoch in range(args.epochs):
        total, count = 0.0, 0
        for step, idx in enumerate(epoch_batches(args.samples, args.batch_size, epoch), 1):
            opt.zero_grad()
            loss = stage.step(len(idx), inputs=x[idx] if rank == 0 else None,
                              targets=y[idx] if rank == world - 1 else None)
            opt.step()
            if loss is not None:
                total, count = total + loss, count + 1
                if step % 25 == 0:
                    log.info("epoch %d step %d loss %.4f", epoch, step, total / count)
        dist.barrier()
        if args.out:
            os.makedirs(args.out, exist_ok=True)
            torch.save(module.state_dict(), os.path.join(args.out, f"stage{rank}-epoch{epoch}.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
