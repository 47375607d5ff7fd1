"""Second-order MAML on sinusoids; every worker draws its own tasks."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call


def draw_task(gen, shots, queries):
    amp = 0.1 + 4.9 * torch.rand(1, generator=gen)
    phase = 3.1416 * torch.rand(1, generator=gen)
    x = 10 * torch.rand(shots + queries, 1, generator=gen) - 5
    y = amp * torch.sin(x - phase)
    return (x[:shots], y[:shots]), (x[shots:], y[shots:])


def adapt(net, params, support, steps, lr, create_graph):
    x, y = support
    for _ in range(steps):
        loss = F.mse_loss(functional_call(net, params, (x,)), y)
        grads = torch.autograd.grad(loss, list(params.values()), create_graph=create_graph)
        params = {k: p - lr * g for (k, p), g in zip(params.items(), grads)}
    return params


def average_grads(net):
    flat = torch.cat([p.grad.flatten() for p in net.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, g in zip(net.parameters(), flat.split([p.numel() for p in net.parameters()])):
        p.grad.copy_(g.view_as(p))


def test_loss(net, tasks, args):
    total = torch.zeros(args.test_inner + 1)
    for support, (qx, qy) in tasks:
        params = dict(net.named_parameters())
        for k in range(args.test_inner + 1):
            with torch.no_grad():
                total[k] += F.mse_loss(functional_call(net, params, (qx,)), qy)
            if k < args.test_inner:
                params = adapt(net, params, support, 1, args.inner_lr, create_graph=False)
                params = {n: p.detach().requires_grad_() for n, p in params.items()}
    dist.all_reduce(total)
    return (total / (len(tasks) * dist.get_world_size())).tolist()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--tasks", type=int, default=8)
    ap.add_argument("--shots", type=int, default=10)
    ap.add_argument("--inner", type=int, default=2)
    ap.add_argument("--test-inner", type=int, default=5)
    ap.add_argument("--inner-lr", type=float, default=0.01)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    for p in net.parameters():
        dist.broadcast(p.data, src=0)
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    gen = torch.Generator().manual_seed(10 + rank)
    held_gen = torch.Generator().manual_seed(10000 + rank)
    held = [draw_task(held_gen, args.shots, 50) for _ in range(20)]
    for step in range(args.steps):
        opt.zero_grad()
        meta = 0.0
        for _ in range(args.tasks):
            support, (qx, qy) = draw_task(gen, args.shots, 15)
            fast = adapt(net, dict(net.named_parameters()), support, args.inner, args.inner_lr, create_graph=True)
            loss = F.mse_loss(functional_call(net, fast, (qx,)), qy) / args.tasks
            loss.backward()
            meta += loss.item()
        average_grads(net)
        opt.step()
        if (step + 1) % 50 == 0:
            curve = test_loss(net, held, args)
            if rank == 0:
                print(f"step {step + 1} meta {meta:.3f} test by inner step " + " ".join(f"{c:.2f}" for c in curve), flush=True)
    if rank == 0:
        torch.save(net.state_dict(), "meta.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
