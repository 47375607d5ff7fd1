import argparse
import logging
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from groups import Grid

log = logging.getLogger("grid")


class SplitMLP(nn.Module):
    """Hidden units are divided over the row; partial outputs are summed there."""

    def __init__(self, dim, hidden, out, grid, cols):
        super().__init__()
        self.grid = grid
        gen = torch.Generator().manual_seed(10 + grid.col)
        self.w1 = nn.Parameter(torch.randn(hidden // cols, dim, generator=gen) / dim ** 0.5)
        self.w2 = nn.Parameter(torch.randn(out, hidden // cols, generator=gen) / hidden ** 0.5)

    def forward(self, x):
        partial = torch.relu(x @ self.w1.T) @ self.w2.T
        total = partial.detach().clone()
        dist.all_reduce(total, group=self.grid.row_group)
        # value of the sum, gradient of the own part
        return partial + (total - partial).detach()


def prepare(path, seconds):
    """Takes long where it has not been done before."""
    if not path.exists():
        time.sleep(seconds)
        tmp = path.with_suffix(".tmp")
        torch.save(torch.randn(64, 10, generator=torch.Generator().manual_seed(0)), tmp)
        os.replace(tmp, path)
    return torch.load(path)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=160)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--hidden", type=int, default=256)
    p.add_argument("--lr", type=float, default=0.03)
    p.add_argument("--prepare-seconds", type=float, default=5.0)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{rank}] %(name)s %(message)s")
    grid = Grid(2, dist.get_world_size() // 2)
    box = [tempfile.mkdtemp(prefix=f"juniper-row{grid.row}-") if grid.is_head else None]
    dist.broadcast_object_list(box, src=grid.head_ranks[grid.row], group=grid.row_group)

    with grid.head_first():
        teacher = prepare(Path(box[0]) / "teacher.pt", args.prepare_seconds * (1 + grid.row))

    model = SplitMLP(64, args.hidden, 10, grid, dist.get_world_size() // 2)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    gen = torch.Generator().manual_seed(1000 + grid.row)
    for step in range(1, args.steps + 1):
        x = torch.randn(args.batch_size, 64, generator=gen)
        y = (x @ teacher).argmax(1)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        for q in model.parameters():
            dist.all_reduce(q.grad, group=grid.col_group)
            q.grad /= 2
        opt.step()
        if step % 40 == 0 and grid.is_head:
            mean = loss.detach().clone()
            dist.all_reduce(mean, group=grid.heads)
            if rank == 0:
                log.info("step %d loss %.4f", step, mean.item() / len(grid.head_ranks))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
