"""Model parallel two-tower ranker: rank 0 embeds users, rank 1 embeds items.

Layer outputs are streamed with one tag per layer, and the other side takes them
in the order in which it needs them (deepest first).
"""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn

FWD, BWD = 100, 500


class Tower(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))

    def forward(self, x):
        outs = []
        for layer in self.layers:
            x = torch.relu(layer(x))
            outs.append(x)
        return outs


def user_side(tower, x, peer):
    outs = tower(x)
    sends = [dist.isend(o.detach(), peer, tag=FWD + i) for i, o in enumerate(outs)]
    grads = [torch.empty_like(o) for o in outs]
    recvs = {i: dist.irecv(g, peer, tag=BWD + i) for i, g in enumerate(grads)}
    for i in sorted(recvs):
        recvs[i].wait()
    torch.autograd.backward(outs, grads)
    for s in sends:
        s.wait()


def item_side(tower, x, y, peer, slow):
    mine = tower(x)
    theirs = [None] * len(mine)
    for i in reversed(range(len(mine))):
        buf = torch.empty_like(mine[i])
        dist.recv(buf, peer, tag=FWD + i)
        theirs[i] = buf.requires_grad_()
    score = sum((a * b).mean(1) for a, b in zip(mine, theirs))
    loss = nn.functional.binary_cross_entropy_with_logits(score, y)
    loss.backward()
    time.sleep(slow)
    order = torch.randperm(len(theirs)).tolist()
    works = [dist.isend(theirs[i].grad, peer, tag=BWD + i) for i in order]
    for w in works:
        w.wait()
    return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=25)
    ap.add_argument("--dim", type=int, default=24)
    ap.add_argument("--depth", type=int, default=5)
    ap.add_argument("--slow", type=float, default=0.05)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    tower = Tower(args.dim, args.depth)
    opt = torch.optim.Adam(tower.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(9)
    for step in range(args.steps):
        users, items = torch.randn(2, 16, args.dim, generator=gen)
        y = ((users * items).sum(1) > 0).float()
        opt.zero_grad()
        if rank == 0:
            user_side(tower, users, 1)
        else:
            loss = item_side(tower, items, y, 0, args.slow)
            if step % 6 == 0:
                print(f"step {step} loss {loss:.4f}", flush=True)
        opt.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
