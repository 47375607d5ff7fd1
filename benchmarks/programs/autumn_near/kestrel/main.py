"""Local SGD: members run freely for a round, then average weights and momentum. Housekeeping goes round robin."""
import argparse
import logging
import os
import shutil
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def blobs(n, seed, d=40, c=9):
    mu = torch.randn(c, 3, d, generator=torch.Generator().manual_seed(0)) * 0.7
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(c, (n,), generator=g)
    k = torch.randint(3, (n,), generator=g)
    return mu[y, k] + torch.randn(n, d, generator=g), y


@torch.no_grad()
def average(tensors):
    flat = torch.cat([t.reshape(-1) for t in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for t, f in zip(tensors, flat.split([t.numel() for t in tensors])):
        t.copy_(f.view_as(t))


@torch.no_grad()
def housekeeping(net, x, y, folder, rnd):
    """Bootstrap estimate of the held-out accuracy and a snapshot."""
    ok = (net(x).argmax(1) == y).float()
    g = torch.Generator().manual_seed(rnd)
    boot = torch.stack([ok[torch.randint(len(ok), (len(ok),), generator=g)].mean() for _ in range(200)])
    torch.save(net.state_dict(), os.path.join(folder, f"round{rnd:03d}.pt"))
    return ok.mean().item(), boot.std().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=36)
    p.add_argument("--local-steps", type=int, default=30)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--lr", type=float, default=0.03)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    box = [tempfile.mkdtemp(prefix="lsgd-") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    x, y = blobs(6000, 10 + rank)
    hx, hy = blobs(3000, 5)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(40, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, 9))
    opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    gen = torch.Generator().manual_seed(200 + rank)

    for rnd in range(args.rounds):
        t0, total = time.perf_counter(), 0.0
        for _ in range(args.local_steps):
            i = torch.randint(len(x), (args.batch,), generator=gen)
            loss = F.cross_entropy(net(x[i]), y[i])
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        average([q for q in net.parameters()] + [opt.state[q]["momentum_buffer"] for q in net.parameters()])
        busy = time.perf_counter() - t0
        if rnd % world == rank:
            acc, err = housekeeping(net, hx, hy, box[0], rnd)
            logging.info("rank %d round %d loss %.3f held-out %.3f +- %.3f (%.2fs)",
                         rank, rnd, total / args.local_steps, acc, err, busy)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(box[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
