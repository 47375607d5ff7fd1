import argparse
import copy

import torch
import torch.distributed as dist
from torch import nn

from guard import Unstable, together


def window(rank, w, size):
    g = torch.Generator().manual_seed(1000 * rank + w)
    x = torch.randn(size, 16, generator=g)
    if rank == 1 and w in (4, 9):
        x[: size // 4] *= 40.0
    return x, x.abs().mean(1, keepdim=True)


def local_steps(net, x, y, lr, limit=20.0):
    net = copy.deepcopy(net)
    opt = torch.optim.SGD(net.parameters(), lr=lr)
    for xb, yb in zip(x.split(16), y.split(16)):
        loss = nn.functional.smooth_l1_loss(net(xb), yb)
        if not torch.isfinite(loss) or loss.item() > limit:
            raise Unstable(f"loss {loss.item():.3g} at lr {lr:.4f}")
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
    return net, loss.item()


def merge(net, mine):
    with torch.no_grad():
        for p, q in zip(net.parameters(), mine.parameters()):
            p.copy_(q)
            dist.all_reduce(p)
            p /= dist.get_world_size()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--windows", type=int, default=14)
    ap.add_argument("--size", type=int, default=64)
    ap.add_argument("--lr", type=float, default=0.05)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(9)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    for w in range(args.windows):
        x, y = window(rank, w, args.size)
        scale = {"x": 1.0}

        def shrink(n):
            scale["x"] *= 0.05

        def attempt(n):
            return local_steps(net, x * scale["x"], y * scale["x"], args.lr)

        mine, loss = together(attempt, 3, shrink)
        merge(net, mine)
        if rank == 0:
            print(f"window {w} loss {loss:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
