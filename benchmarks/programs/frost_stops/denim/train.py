import argparse

import torch
import torch.distributed as dist

from grid import Grid


def block(m, grid):
    h, w = m.shape[0] // grid.side, m.shape[1] // grid.side
    return m[grid.row * h:(grid.row + 1) * h, grid.col * w:(grid.col + 1) * w].clone()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rows", type=int, default=60)
    ap.add_argument("--cols", type=int, default=40)
    ap.add_argument("--rank-k", type=int, default=5)
    ap.add_argument("--iters", type=int, default=200)
    ap.add_argument("--lr", type=float, default=0.001)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    grid = Grid()
    g = torch.Generator().manual_seed(33)
    target = torch.randn(args.rows, args.rank_k, generator=g) @ torch.randn(args.rank_k, args.cols, generator=g)
    y = block(target, grid)
    u = 0.3 * torch.randn(args.rows, args.rank_k, generator=g).chunk(grid.side)[grid.row]
    v = 0.3 * torch.randn(args.cols, args.rank_k, generator=g).chunk(grid.side)[grid.col]

    for it in range(1, args.iters + 1):
        err = u @ v.T - y
        gu, gv = err @ v, err.T @ u
        grid.sum_both(gu, gv)
        u = u - args.lr * gu
        v = v - args.lr * gv
        if it % 50 == 0:
            sq = err.square().sum()
            dist.all_reduce(sq)
            if dist.get_rank() == 0:
                print(f"iter {it} rmse {(sq / target.numel()).sqrt().item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
