"""GPipe-like pipeline in each replica, gradient averaging across replicas."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from grid import Grid


def make(n, seed, length=16, vocab=12):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, vocab, (n, length), generator=g)
    return x, (x == 3).sum(1).clamp(max=3)


class Front(nn.Module):
    def __init__(self, vocab, d):
        super().__init__()
        self.e, self.g = nn.Embedding(vocab, d), nn.GRU(d, d, batch_first=True)

    def forward(self, x):
        return self.g(self.e(x))[0]


class Back(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g, self.o = nn.GRU(d, d, batch_first=True), nn.Linear(d, 4)

    def forward(self, h):
        return self.o(self.g(h)[0].mean(1))


def step_pipeline(grid, mod, xs, ys, shape):
    acts, total = [], torch.zeros(1)
    for x, y in zip(xs, ys):
        if grid.first:
            h = mod(x).contiguous()
            dist.send(h.detach(), grid.next)
            acts.append(h)
        else:
            h = torch.empty(shape)
            dist.recv(h, grid.prev)
            h.requires_grad_()
            acts.append((h, F.cross_entropy(mod(h), y) / len(xs)))
    for a in reversed(acts):
        if grid.first:
            g = torch.empty(shape)
            dist.recv(g, grid.next)
            a.backward(g)
        else:
            h, loss = a
            loss.backward()
            total += loss.detach()
            dist.send(h.grad.contiguous(), grid.prev)
    return total


def average(mod, group, n):
    works = []
    for p in mod.parameters():
        works.append(dist.all_reduce(p.grad, group=group, async_op=True))
    for w in works:
        w.wait()
    for p in mod.parameters():
        p.grad /= n


@torch.no_grad()
def evaluate(grid, mod, x, y, d):
    x, y = x[grid.replica::grid.replicas], y[grid.replica::grid.replicas]
    hits = torch.zeros(1)
    if grid.first:
        dist.send(mod(x).contiguous(), grid.next)
    else:
        h = torch.empty(len(x), x.size(1), d)
        dist.recv(h, grid.prev)
        hits[0] = (mod(h).argmax(1) == y).sum()
    dist.all_reduce(hits)
    return hits.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--chunks", type=int, default=4)
    ap.add_argument("--dim", type=int, default=48)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    grid = Grid(stages=2)
    x, y = make(6000, 1)
    vx, vy = make(800, 2)
    torch.manual_seed(20 + grid.stage)
    mod = Front(12, args.dim) if grid.first else Back(args.dim)
    opt = torch.optim.Adam(mod.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.StepLR(opt, 60, 0.5)
    px, py = x[grid.replica::grid.replicas], y[grid.replica::grid.replicas]
    gen = torch.Generator().manual_seed(8 + grid.replica)
    shape = (args.batch // args.chunks, x.size(1), args.dim)
    for step in range(args.steps):
        ix = torch.randint(0, len(px), (args.batch,), generator=gen)
        opt.zero_grad()
        loss = step_pipeline(grid, mod, px[ix].chunk(args.chunks), py[ix].chunk(args.chunks), shape)
        average(mod, grid.dp_group, grid.replicas)
        opt.step()
        sched.step()
        if (step + 1) % 40 == 0:
            hits = evaluate(grid, mod, vx, vy, args.dim)
            if grid.last and grid.replica == 0:
                print(f"step {step + 1} loss {loss.item():.4f} acc {hits / len(vy):.3f}", flush=True)
    if grid.replica == 0:
        torch.save(mod.state_dict(), f"stage{grid.stage}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
