"""Sequence split over ranks; keys and values go round the ring in each attention call."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn

DIM, CHUNK = 16, 12


def pass_on(block):
    rank, world = dist.get_rank(), dist.get_world_size()
    taken = torch.empty_like(block)
    ops = [
        dist.P2POp(dist.isend, block, (rank + 1) % world),
        dist.P2POp(dist.irecv, taken, (rank - 1) % world),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return taken


@torch.no_grad()
def ring_context(key_value):
    """All blocks in the order of the sequence; only the own one is followed by autograd."""
    rank, world = dist.get_rank(), dist.get_world_size()
    blocks, block = [None] * world, key_value
    for hop in range(world):
        blocks[(rank - hop) % world] = block
        if hop + 1 < world:
            block = pass_on(block)
    return blocks


class Probe(nn.Module):
    """Trains only the query and output maps; keys and values are frozen features."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(DIM, DIM)
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x):
        memory = torch.cat(ring_context(x.contiguous()))
        weight = (self.query(x) @ memory.T / DIM**0.5).softmax(-1)
        return self.out(weight @ memory)


def sequence(step, world):
    gen = torch.Generator().manual_seed(step)
    return torch.randn(world * CHUNK, DIM, generator=gen)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Probe()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(args.steps):
        time.sleep(0.25)
        full = sequence(step, world)
        mine = full.chunk(world)[rank]
        loss = ((model(mine) - full.mean(0)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(flat)
        nn.utils.vector_to_parameters(flat / world, [p.grad for p in model.parameters()])
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
