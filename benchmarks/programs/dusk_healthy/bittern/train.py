"""Federated averaging, one client per process.

A round: every client trains E local epochs on its private data (so a large client makes more
steps than a small one), then the shared layers are averaged with weights n_k / n.
Not every client takes part in every round.
"""
import argparse
import copy
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader

from data import build, client_subsets
from model import PersonalizedNet


def participants(rnd, world, frac, seed=99):
    g = torch.Generator().manual_seed(seed + rnd)
    m = max(1, round(frac * world))
    return set(torch.randperm(world, generator=g)[:m].tolist())


def local_train(net, anchor, loader, epochs, lr, mu):
    opt = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)   # fresh momentum each round
    steps, total = 0, 0.0
    net.train()
    for _ in range(epochs):
        for x, y in loader:
            loss = F.cross_entropy(net(x), y)
            prox = sum((p - a).pow(2).sum() for p, a in zip(net.shared(), anchor))
            opt.zero_grad()
            (loss + 0.5 * mu * prox).backward()
            opt.step()
            steps, total = steps + 1, total + loss.item()
    return steps, total / max(steps, 1)


@torch.no_grad()
def server_average(net, anchor, weight):
    """Weighted average; an idle client contributes with weight zero but still receives the result."""
    norm = torch.tensor([float(weight)])
    dist.all_reduce(norm)
    for p, a in zip(net.shared(), anchor):
        acc = p.detach() * weight if weight else torch.zeros_like(p)
        dist.all_reduce(acc)
        p.copy_(acc / norm)
        a.copy_(p)


def evaluate(net, subset):
    net.eval()
    x = torch.stack([subset[i][0] for i in range(len(subset))])
    y = torch.stack([subset[i][1] for i in range(len(subset))])
    with torch.no_grad():
        hits = (net(x).argmax(1) == y).sum()
    stat = torch.tensor([hits.item(), len(y)], dtype=torch.float64)
    mine = (stat[0] / stat[1]).item()
    dist.all_reduce(stat)
    return mine, (stat[0] / stat[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=8)
    ap.add_argument("--local-epochs", type=int, default=2)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--mu", type=float, default=1e-3)
    ap.add_argument("--fraction", type=float, default=0.67)
    ap.add_argument("--alpha", type=float, default=0.6)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = PersonalizedNet()
    torch.manual_seed(500 + rank)
    train, val = client_subsets(build(), rank, world, args.alpha)
    loader = DataLoader(train, args.batch_size, shuffle=True, drop_last=len(train) > args.batch_size)
    print(f"client {rank}: {len(train)} train / {len(val)} val samples", flush=True)
    anchor = [p.detach().clone() for p in net.shared()]
    best = (0.0, None)
    for rnd in range(args.rounds):
        active = rank in participants(rnd, world, args.fraction)
        t0 = time.time()
        steps, loss = local_train(net, anchor, loader, args.local_epochs, args.lr, args.mu) if active else (0, float("nan"))
        server_average(net, anchor, len(train) if active else 0)
        mine, glob = evaluate(net, val)
        if mine > best[0]:
            best = (mine, copy.deepcopy(net.state_dict()))   # each client keeps its own best
        print(f"client {rank} round {rnd} {'active' if active else 'idle'} steps {steps} loss {loss:.3f} "
              f"acc {mine:.3f} global {glob:.3f} {time.time() - t0:.1f}s", flush=True)
    out = args.out or tempfile.mkdtemp()
    os.makedirs(out, exist_ok=True)
    torch.save(best[1], os.path.join(out, f"client{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
