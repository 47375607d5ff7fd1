import argparse
import logging
import time

import torch
import torch.distributed as dist
from torch import nn

from gossip import RingGossip

log = logging.getLogger("gossip")


class Shard:
    """Every worker sees its own mixture of the classes."""

    def __init__(self, rank, n=3000, dim=32, classes=6):
        centres = 2.5 * torch.randn(classes, dim, generator=torch.Generator().manual_seed(0))
        gen = torch.Generator().manual_seed(100 + rank)
        weights = torch.ones(classes)
        weights[rank % classes] += 3
        self.y = torch.multinomial(weights, n, replacement=True, generator=gen)
        self.x = centres[self.y] + 2.0 * torch.randn(n, dim, generator=gen)

    def sample(self, size, gen):
        idx = torch.randint(0, len(self.x), (size,), generator=gen)
        return self.x[idx], self.y[idx]


def local_rounds(model, opt, shard, steps, size, gen, drag):
    total = 0.0
    for _ in range(steps):
        x, y = shard.sample(size, gen)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        time.sleep(drag)
    return total / steps


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=24)
    p.add_argument("--local-steps", type=int, default=10)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--lr", type=float, default=0.05)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s w{rank} %(message)s")

    torch.manual_seed(1234)
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 6))
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    gossip = RingGossip(model)
    gen = torch.Generator().manual_seed(rank)
    shard = Shard(rank)
    drag = 0.03 * rank

    for r in range(args.rounds):
        loss = local_rounds(model, opt, shard, args.local_steps, args.batch_size, gen, drag)
        gossip.mix()
        if r % 6 == 5:
            spread = gossip.spread()
            if rank == n - 1:
                log.info("round %d local loss %.4f spread %.5f", r, loss, spread)

    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    dist.all_reduce(flat)
    nn.utils.vector_to_parameters(flat / n, model.parameters())
    with torch.no_grad():
        acc = (model(shard.x).argmax(1) == shard.y).float().mean()
    dist.all_reduce(acc)
    if rank == 0:
        log.info("consensus accuracy %.4f", acc.item() / n)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
