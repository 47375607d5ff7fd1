"""Parameter server on rank 0; workers of different speed push gradients and take weights back."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn

PUSH, BYE = 1, 2


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))


def serve(workers):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    message = torch.empty(flat.numel() + 1)
    counts, open_workers = {}, workers
    while open_workers:
        source = dist.recv(message)
        if int(message[0]) == BYE:
            open_workers -= 1
            continue
        counts[source] = counts.get(source, 0) + 1
        start = 1
        for p in model.parameters():
            p.grad = message[start : start + p.numel()].view_as(p).clone()
            start += p.numel()
        optimizer.step()
        dist.send(nn.utils.parameters_to_vector(model.parameters()).detach(), dst=source)
    print(f"pushes {sorted(counts.items())}", flush=True)


def work(rank, steps):
    model = make_model()
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    gen = torch.Generator().manual_seed(rank)
    for step in range(steps):
        time.sleep(0.2 * rank)
        x = torch.randn(32, 8, generator=gen)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        model.zero_grad()
        loss.backward()
        grads = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.send(torch.cat([torch.tensor([float(PUSH)]), grads]), dst=0)
        dist.recv(weights, src=0)
        nn.utils.vector_to_parameters(weights.clone(), model.parameters())
    dist.send(torch.cat([torch.tensor([float(BYE)]), torch.zeros_like(weights)]), dst=0)
    print(f"[{rank}] {steps} steps, loss {loss.item():.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=36)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        serve(world - 1)
    else:
        work(rank, args.steps if rank == 1 else args.steps // 2)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
