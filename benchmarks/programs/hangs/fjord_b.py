"""Mixture of experts where replicas of an expert share gradients in a group of their own."""
import argparse
import functools

import torch
import torch.distributed as dist
import torch.nn as nn

WIDTH = 16


@functools.lru_cache(maxsize=None)
def group_of(members):
    return dist.new_group(list(members))


class Placement:
    """Expert e lives on two neighbouring ranks."""

    def __init__(self, experts, world):
        self.table = {e: tuple(sorted({(2 * e) % world, (2 * e + 1) % world})) for e in range(experts)}

    def replicas(self, expert):
        return self.table[expert]

    def local(self, rank):
        return [e for e, members in self.table.items() if rank in members]


class Experts(nn.Module):
    def __init__(self, placement, rank):
        super().__init__()
        self.placement = placement
        self.mine = placement.local(rank)
        self.bank = nn.ModuleDict({str(e): nn.Linear(WIDTH, WIDTH) for e in self.mine})
        self.router = nn.Linear(WIDTH, max(len(self.mine), 1))
        self.touched = []

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        out = torch.zeros_like(x)
        self.touched = []
        for column, expert in enumerate(self.mine):
            chosen = weights[:, column] >= 1.0 / len(self.mine)
            if not chosen.any():
                continue
            self.touched.append(expert)
            out[chosen] += self.bank[str(expert)](x[chosen])
        return x + out + 0.0 * weights.sum()

    def sync_experts(self):
        for expert in self.touched:
            members = self.placement.replicas(expert)
            group = group_of(members)
            for parameter in self.bank[str(expert)].parameters():
                dist.all_reduce(parameter.grad, group=group)
                parameter.grad.div_(len(members))


def sync_shared(model):
    for parameter in model.router.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(dist.get_world_size())


def tokens(rank, step, count):
    gen = torch.Generator().manual_seed(97 * step + rank)
    return torch.randn(count if rank < 2 or step > 2 else 0, WIDTH, generator=gen)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--experts", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank // 2)
    placement = Placement(args.experts, world)
    model = Experts(placement, rank)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(args.steps):
        x = tokens(rank, step, 32)
        opt.zero_grad()
        loss = model(x).square().sum() / max(len(x), 1)
        loss.backward()
        model.sync_experts()
        sync_shared(model)
        opt.step()
    if rank == 0:
        print(f"finished {args.steps} steps, last loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
