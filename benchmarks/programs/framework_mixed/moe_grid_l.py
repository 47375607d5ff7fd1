import argparse

import torch
import torch.distributed as dist
import torch.nn as nn


class Grid:
    """dp x ep grid: a row shares the dense part, a column shares its experts."""

    def __init__(self, ep):
        world = dist.get_world_size()
        self.rank = dist.get_rank()
        self.row, self.col = divmod(self.rank, ep)
        for start in range(0, world, ep):
            ranks = list(range(start, start + ep))
            g = dist.new_group(ranks)
            if self.rank in ranks:
                self.ep_group, self.ep_size = g, len(ranks)
        for col in range(ep):
            ranks = list(range(col, world, ep))
            g = dist.new_group(ranks)
            if self.rank in ranks:
                self.dp_group, self.dp_size = g, len(ranks)


class DenseAndExpert(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.dense = nn.Linear(d, d)
        self.expert = nn.Sequential(nn.Linear(d, 32), nn.GELU(), nn.Linear(32, d))

    def forward(self, x):
        h = torch.tanh(self.dense(x))
        return h + self.expert(h)


def average(params, group, n):
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat, group=group)
    i = 0
    for p in params:
        p.grad.copy_(flat[i : i + p.numel()].view_as(p) / n)
        i += p.numel()


class GradientExchange:
    def __init__(self, model, grid):
        dense, expert = list(model.dense.parameters()), list(model.expert.parameters())
        along_row = lambda: average(dense, grid.ep_group, grid.ep_size)
        along_col = lambda: average(expert, grid.dp_group, grid.dp_size)
        self.first = [along_row, along_col]
        self.last = lambda: average(dense, grid.dp_group, grid.dp_size)

    def __call__(self):
        for job in self.first:
            job()
        self.last()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=40)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    grid = Grid(ep=2)
    torch.manual_seed(0)
    model = DenseAndExpert()
    exchange = GradientExchange(model, grid)
    torch.manual_seed(100 + grid.rank)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(args.steps):
        x = torch.randn(24, 16)
        loss = (model(x) - x.roll(1, dims=1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        exchange()
        opt.step()
        if grid.rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
