"""MAML over sinusoid tasks with torch.func; every process draws its own tasks.

The number of inner steps and the number of tasks are private to a process, only the outer gradient
(a sum over tasks, plus the count) is shared.
"""
import argparse
import os
import random
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap


class Net(nn.Module):
    def __init__(self, h=128):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, 1))

    def forward(self, x):
        return self.net(x)


def tasks(n, shots, gen):
    amp = 0.1 + 4.9 * torch.rand(n, 1, 1, generator=gen)
    phase = 3.14 * torch.rand(n, 1, 1, generator=gen)
    x = 10 * torch.rand(n, 2 * shots, 1, generator=gen) - 5
    y = amp * torch.sin(x + phase)
    return x[:, :shots], y[:, :shots], x[:, shots:], y[:, shots:]


def make_objective(net, inner_lr):
    def loss_fn(params, x, y):
        return F.mse_loss(functional_call(net, params, (x,)), y)

    def adapt(params, x, y, steps):
        for _ in range(steps):
            g = grad(loss_fn)(params, x, y)
            params = {k: p - inner_lr * g[k] for k, p in params.items()}
        return params

    def query_loss(params, sx, sy, qx, qy, steps):
        return loss_fn(adapt(params, sx, sy, steps), qx, qy)

    return query_loss


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=100)
    ap.add_argument("--tasks", type=int, default=24)
    ap.add_argument("--shots", type=int, default=20)
    ap.add_argument("--inner-lr", type=float, default=0.02)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = Net()
    params = {k: v for k, v in net.named_parameters()}
    opt = torch.optim.Adam(params.values(), lr=args.lr)
    objective = make_objective(net, args.inner_lr)
    gen, rng = torch.Generator().manual_seed(rank), random.Random(rank)
    for it in range(args.iters):
        t0 = time.time()
        steps = rng.choice([1, 2, 3])                       # hardens against the number of steps
        n = args.tasks + rng.randrange(-4, 5)
        batch = tasks(n, args.shots, gen)
        loss = vmap(objective, in_dims=(None, 0, 0, 0, 0, None))(params, *batch, steps).sum()
        grads = torch.autograd.grad(loss, list(params.values()))
        flat = torch.cat([g.flatten() for g in grads] + [torch.tensor([float(n), loss.item()])])
        dist.all_reduce(flat)
        count, total = flat[-2:].tolist()
        offset = 0
        for p in params.values():
            p.grad = (flat[offset: offset + p.numel()] / count).view_as(p)
            offset += p.numel()
        nn.utils.clip_grad_norm_(params.values(), 5.0)
        opt.step()
        if it % 20 == 0 or it == args.iters - 1:
            print(f"rank {rank} iter {it} {n} tasks {steps} inner steps, global query loss {total / count:.4f} "
                  f"({time.time() - t0:.2f}s)", flush=True)
    if rank == 0:
        out = args.out or tempfile.mkdtemp()
        os.makedirs(out, exist_ok=True)
        torch.save(net.state_dict(), os.path.join(out, "maml.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
