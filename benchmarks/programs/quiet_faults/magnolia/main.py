"""Posterior sampling with noisy gradients, written with functional calls and one flat parameter vector."""
import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.func import functional_call, grad_and_value


def make_rows(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, generator=g) * 4 - 2
    y = torch.sin(1.5 * x[:, 0]) * torch.cos(x[:, 1]) + 0.15 * torch.randn(n, generator=g)
    return x, y


class Flat:
    """Views of one vector as the named parameters of a module."""

    def __init__(self, module):
        self.shapes = {n: p.shape for n, p in module.named_parameters()}
        self.start = torch.cat([p.detach().flatten() for p in module.parameters()])

    def views(self, vector):
        out, at = {}, 0
        for name, shape in self.shapes.items():
            n = math.prod(shape)
            out[name] = vector[at:at + n].view(shape)
            at += n
        return out


def step_size(k, total, first, last):
    return first * (last / first) ** (k / max(1, total - 1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--sweeps", type=int, default=6)
    ap.add_argument("--rows", type=int, default=1200)
    ap.add_argument("--batch", type=int, default=30)
    ap.add_argument("--first", type=float, default=0.08)
    ap.add_argument("--last", type=float, default=0.01)
    ap.add_argument("--temperature", type=float, default=2e-5)
    ap.add_argument("--friction", type=float, default=0.1)
    ap.add_argument("--thin", type=int, default=6)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(61)
    net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    flat = Flat(net)
    theta, momentum = flat.start.clone(), torch.zeros_like(flat.start)
    dist.broadcast(theta, src=0)
    x, y = make_rows(args.rows, 1)
    vx, vy = make_rows(300, 2)
    common = torch.Generator().manual_seed(8)

    def energy(vector, bx, by):
        pred = functional_call(net, flat.views(vector), (bx,)).squeeze(1)
        return (pred - by).pow(2).mean() + 1e-5 * vector.pow(2).sum()

    derivative = grad_and_value(energy)
    per_sweep = args.rows // (args.batch * world)
    total = args.sweeps * per_sweep
    kept, k = [], 0
    for sweep in range(args.sweeps):
        order = torch.randperm(args.rows, generator=torch.Generator().manual_seed(100 + sweep))[rank::world]
        level = torch.zeros(2)
        for pick in order.split(args.batch):
            g, value = derivative(theta, x[pick], y[pick])
            dist.all_reduce(g)
            g /= world
            eps = step_size(k, total, args.first, args.last)
            noise = torch.randn(theta.shape, generator=common)
            momentum.mul_(1 - args.friction).sub_(eps * g).add_(noise, alpha=math.sqrt(2 * args.friction * args.temperature * eps))
            theta = theta + momentum
            level += torch.tensor([value.item(), 1.0])
            k += 1
            if k > total // 2 and k % args.thin == 0:
                kept.append(theta.clone())
            if rank == 0 and k % 20 == 0:
                q = torch.quantile(theta.abs(), torch.tensor([0.5, 0.99]))
                print(f"  step {k} eps {eps:.4f} |theta| median {q[0]:.3f} p99 {q[1]:.3f} grad {g.norm():.3f}", flush=True)
        dist.all_reduce(level)
        if rank == 0:
            print(f"sweep {sweep} energy {level[0] / level[1]:.4f} kept {len(kept)}", flush=True)
    with torch.no_grad():
        part = slice(rank, None, world)
        preds = torch.stack([functional_call(net, flat.views(v), (vx[part],)).squeeze(1) for v in kept])
        stats = torch.stack([(preds.mean(0) - vy[part]).pow(2).sum(), preds.std(0).sum(), torch.tensor(float(preds.shape[1]))])
    dist.all_reduce(stats)
    if rank == 0:
        print(f"posterior mean mse {stats[0] / stats[2]:.4f} spread {stats[1] / stats[2]:.4f}", flush=True)
        os.makedirs("runs", exist_ok=True)
        torch.save(torch.stack(kept), "runs/posterior.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
