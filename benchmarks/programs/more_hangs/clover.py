"""Two policies on halves of the world, each with its own schedule, leaders trade statistics."""
import argparse

import torch
import torch.distributed as dist
from torch import nn


class Half:
    def __init__(self, ranks, group):
        self.ranks = ranks
        self.group = group
        self.leader = ranks[0]

    @property
    def size(self):
        return len(self.ranks)


class Explorer:
    def __init__(self, half, seed):
        self.half = half
        torch.manual_seed(seed)
        self.net = nn.Linear(6, 3)
        self.g = torch.Generator().manual_seed(seed + dist.get_rank())

    def round(self, k):
        obs = torch.randn(4 + k % 3, 6, generator=self.g)
        logits = self.net(obs).detach()
        sizes = [torch.zeros(1, dtype=torch.long) for _ in self.half.ranks]
        dist.all_gather(sizes, torch.tensor([len(logits)]), group=self.half.group)
        parts = [torch.empty(int(n), 3) for n in sizes]
        dist.all_gather(parts, logits, group=self.half.group)
        return torch.cat(parts).mean()


class Critic:
    def __init__(self, half, seed):
        self.half = half
        torch.manual_seed(seed)
        self.net = nn.Linear(6, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.g = torch.Generator().manual_seed(seed + dist.get_rank())

    def round(self, k):
        for inner in range(3):
            x = torch.randn(8, 6, generator=self.g)
            loss = (self.net(x).squeeze(-1) - x.sum(1)).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            works = [dist.all_reduce(p.grad, group=self.half.group, async_op=True) for p in self.net.parameters()]
            for w in works:
                w.wait()
            for p in self.net.parameters():
                p.grad /= self.half.size
            self.opt.step()
        if k % 2:
            for p in self.net.parameters():
                dist.broadcast(p.data, src=self.half.leader, group=self.half.group)
        return loss.detach()


def trade(value, half, leaders):
    both = torch.zeros(2)
    rank = dist.get_rank()
    if rank == half.leader:
        mine = torch.stack([value, torch.tensor(float(rank))])
        outbox = [torch.zeros(2) for _ in range(2)]
        dist.all_gather(outbox, mine, group=leaders)
        both = torch.stack([o[0] for o in outbox])
    dist.broadcast(both, src=half.leader, group=half.group)
    return both


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=8)
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    cut = world // 2
    low, high = list(range(cut)), list(range(cut, world))
    halves = [Half(r, dist.new_group(r)) for r in (low, high)]
    leaders = dist.new_group([low[0], high[0]])
    half = halves[0] if rank < cut else halves[1]
    actor = Explorer(half, 10) if rank < cut else Critic(half, 20)
    for k in range(a.rounds):
        value = actor.round(k)
        if k % 4 == 3:
            both = trade(value, half, leaders)
            if rank == world - 1:
                print(f"round {k}: {both.tolist()}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
