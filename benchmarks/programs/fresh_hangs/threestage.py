"""Three-stage pipeline: all forwards of a step, then all backwards."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn

WIDTH, ROWS = 24, 16


def make_stage(rank, world):
    torch.manual_seed(rank)
    if rank == world - 1:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3))
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


def batches(step, count):
    gen = torch.Generator().manual_seed(step)
    for _ in range(count):
        x = torch.randn(ROWS, WIDTH, generator=gen)
        yield x, x[:, :3].argmax(1)


def run_step(stage, rank, world, step, micro):
    kept, loss_sum = [], 0.0
    first, last = rank == 0, rank == world - 1
    for x, y in batches(step, micro):
        if not first:
            x = torch.empty(ROWS, WIDTH)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        out = stage(x)
        if last:
            out = nn.functional.cross_entropy(out, y) / micro
            loss_sum += out.item()
        else:
            dist.send(out.detach(), rank + 1)
        kept.append((x, out))
    for x, out in kept:
        if last:
            out.backward()
        else:
            grad = torch.empty_like(out)
            dist.recv(grad, rank + 1)
            out.backward(grad)
        if not first:
            dist.send(x.grad, rank - 1)
    return loss_sum


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--micro", type=int, default=4)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = make_stage(rank, world)
    optimizer = torch.optim.Adam(stage.parameters(), lr=3e-3)
    for step in range(args.steps):
        time.sleep(0.3)
        loss = run_step(stage, rank, world, step, args.micro)
        optimizer.step()
        optimizer.zero_grad()
        if rank == world - 1 and step % 6 == 0:
            print(f"step {step} loss {loss:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
