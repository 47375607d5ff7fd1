"""Matrix factorisation: item factors replicated, user factors split over the processes. Snapshots go to a bucket."""
import argparse

import torch
import torch.distributed as dist

from snapshots import Snapshots


def ratings(users, items, rank, world, seed, dim=4):
    g = torch.Generator().manual_seed(seed)
    u, v = torch.randn(users, dim, generator=g), torch.randn(items, dim, generator=g)
    full = u @ v.T / dim ** 0.5
    known = torch.rand(users, items, generator=g) < 0.3
    return full[rank::world], known[rank::world]


def run(args):
    rank, world = dist.get_rank(), dist.get_world_size()
    table, known = ratings(args.users, args.items, rank, world, args.seed)
    torch.manual_seed(args.seed)
    items = torch.nn.Parameter(0.1 * torch.randn(args.items, args.dim))
    torch.manual_seed(args.seed + 1 + rank)
    users = torch.nn.Parameter(0.1 * torch.randn(len(table), args.dim))
    optim = torch.optim.Adam([items, users], lr=args.lr)
    shots = Snapshots(args.bucket, vars(args))
    pick = torch.Generator().manual_seed(args.seed * 31 + rank)
    for step in range(1, args.steps + 1):
        rows = torch.randperm(len(table), generator=pick)[:args.rows]
        error = (users[rows] @ items.T - table[rows])[known[rows]]
        loss = error.pow(2).mean() + 1e-4 * (users[rows].pow(2).mean() + items.pow(2).mean())
        optim.zero_grad(set_to_none=True)
        loss.backward()
        dist.all_reduce(items.grad)
        items.grad.div_(world)
        optim.step()
        if step % args.every == 0:
            seen = loss.detach().clone()
            dist.all_reduce(seen)
            if rank == 0:
                print(f"step {step} loss {seen.item() / world:.4f}", flush=True)
            state = {"users": users.detach(), "step": step, "optim": optim.state_dict()}
            if rank == 0:
                state["items"] = items.detach()
            shots.commit(step, state)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--users", type=int, default=400)
    ap.add_argument("--items", type=int, default=120)
    ap.add_argument("--dim", type=int, default=8)
    ap.add_argument("--rows", type=int, default=64)
    ap.add_argument("--steps", type=int, default=200)
    ap.add_argument("--every", type=int, default=20)
    ap.add_argument("--lr", type=float, default=0.03)
    ap.add_argument("--seed", type=int, default=14)
    ap.add_argument("--bucket", default="/tmp/factor_bucket")
    a = ap.parse_args()
    dist.init_process_group("gloo")
    run(a)
    dist.destroy_process_group()
