"""A residual MLP cut in three stages, trained on a table of numbers; every process holds one stage.

    torchrun --nproc-per-node 3 main.py --epochs 3
"""
import argparse
import os

import torch
import torch.distributed as dist
from torch import nn

from schedule import PipeConfig, Stage


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.inner(x)


def stage_module(rank, world, width, features):
    torch.manual_seed(40 + rank)
    if rank == 0:
        return nn.Sequential(nn.Linear(features, width), Residual(width))
    if rank == world - 1:
        return nn.Sequential(Residual(width), nn.LayerNorm(width), nn.Linear(width, 1))
    return nn.Sequential(Residual(width), Residual(width))


class Table:
    """Rows live with the first stage, labels with the last; the order of both comes from the same generator."""

    def __init__(self, n, features, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, features, generator=g)
        w = torch.randn(features, generator=g)
        self.y = torch.sin(self.x @ w / features ** 0.5).unsqueeze(1)

    def batches(self, epoch, size, seed):
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(seed + epoch))
        for at in range(0, len(order), size):
            yield order[at:at + size]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--rows", type=int, default=500)
    ap.add_argument("--features", type=int, default=12)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=8)
    ap.add_argument("--save", default="/tmp/pipe_run")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    cfg = PipeConfig()
    stage = Stage(stage_module(rank, world, cfg.width, args.features), cfg, rank, world)
    optim = torch.optim.AdamW(stage.module.parameters(), lr=args.lr)
    table = Table(args.rows, args.features, args.seed)

    for epoch in range(args.epochs):
        seen = []
        for i, idx in enumerate(table.batches(epoch, cfg.batch, args.seed)):
            optim.zero_grad(set_to_none=True)
            loss = stage.run(len(idx), rows=table.x[idx] if stage.first else None,
                             labels=table.y[idx] if stage.last else None,
                             loss_fn=nn.functional.mse_loss)
            optim.step()
            if loss is not None:
                seen.append(loss)
                if i % 5 == 0:
                    print(f"epoch {epoch} batch {i} loss {loss:.4f}", flush=True)
        mean = torch.tensor([sum(seen) / len(seen) if seen else 0.0])
        dist.broadcast(mean, world - 1)
        if rank == 0:
            print(f"== epoch {epoch} mean loss {mean.item():.4f}", flush=True)
        os.makedirs(args.save, exist_ok=True)
        torch.save(stage.module.state_dict(), os.path.join(args.save, f"stage{rank}.pt"))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
