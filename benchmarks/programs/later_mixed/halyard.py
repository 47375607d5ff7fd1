"""Decentralised SGD: ranks sit on a ring and average weights with their neighbours only."""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def net(dim=12):
    return nn.Sequential(nn.Linear(dim, 40), nn.ReLU(), nn.Linear(40, 4))


class Ring:
    """Mixing step x_i <- (x_{i-1} + x_i + x_{i+1}) / 3."""

    def __init__(self, model):
        self.model = model
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.left = (self.rank - 1) % self.world
        self.right = (self.rank + 1) % self.world

    @torch.no_grad()
    def mix(self):
        mine = nn.utils.parameters_to_vector(self.model.parameters())
        a, b = torch.empty_like(mine), torch.empty_like(mine)
        ops = [
            dist.P2POp(dist.isend, mine, self.right, tag=1), dist.P2POp(dist.isend, mine, self.left, tag=2),
            dist.P2POp(dist.irecv, a, self.left, tag=1), dist.P2POp(dist.irecv, b, self.right, tag=2),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        nn.utils.vector_to_parameters((mine + a + b) / 3, self.model.parameters())

    @torch.no_grad()
    def spread(self):
        mine = nn.utils.parameters_to_vector(self.model.parameters())
        mean = mine.clone()
        dist.all_reduce(mean)
        mean /= self.world
        gap = (mine - mean).norm()
        dist.all_reduce(gap, op=dist.ReduceOp.MAX)
        return gap.item(), mean


def local_batch(gen, truth, size=24):
    x = torch.randn(size, truth.size(0), generator=gen)
    return x, (x @ truth).argmax(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--lr", type=float, default=0.1)
    ap.add_argument("--report", type=int, default=30)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    truth = torch.randn(12, 4)
    torch.manual_seed(10 + rank)
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=args.lr)
    ring = Ring(model)
    gen = torch.Generator().manual_seed(rank)
    for step in range(1, args.steps + 1):
        x, y = local_batch(gen, truth)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        ring.mix()
        if step % args.report == 0:
            gap, _ = ring.spread()
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f} largest distance to the mean {gap:.3f}", flush=True)
    _, mean = ring.spread()
    nn.utils.vector_to_parameters(mean, model.parameters())
    x, y = local_batch(torch.Generator().manual_seed(999), truth, 512)
    acc = (model(x).argmax(1) == y).float().mean().item()
    if rank == 0:
        print(f"accuracy of the mean model {acc:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
