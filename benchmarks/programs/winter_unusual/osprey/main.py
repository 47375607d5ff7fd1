"""Federated averaging simulator: a cohort of clients per round, clients distributed over the processes."""
import argparse
import logging
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from clients import ClientPool, assign

log = logging.getLogger("osprey")


class Server:
    """FedAvgM: momentum on the weighted mean client update. Every process holds the same server state."""

    def __init__(self, model, lr, momentum):
        self.vec = parameters_to_vector(model.parameters()).detach()
        dist.broadcast(self.vec, 0)
        self.buf = torch.zeros_like(self.vec)
        self.lr, self.momentum = lr, momentum

    def apply(self, summed, weight):
        self.buf.mul_(self.momentum).add_(summed / weight)
        self.vec.add_(self.buf, alpha=self.lr)


def local_fit(model, data, epochs, batch, lr, gen):
    x, y = data
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(epochs):
        for idx in torch.randperm(len(x), generator=gen).split(batch):
            loss = F.cross_entropy(model(x[idx]), y[idx])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=25)
    ap.add_argument("--clients", type=int, default=80)
    ap.add_argument("--cohort", type=int, default=15)
    ap.add_argument("--local-epochs", type=int, default=3)
    ap.add_argument("--batch", type=int, default=20)
    ap.add_argument("--client-lr", type=float, default=0.03)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    pool = ClientPool(args.clients)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 10))
    server = Server(model, lr=1.0, momentum=0.3)
    sampler = random.Random(1)

    for rnd in range(args.rounds):
        cohort = sampler.sample(range(args.clients), args.cohort)
        mine = assign(cohort, pool.sizes, world)[rank]
        acc = torch.zeros(server.vec.numel() + 1)
        for c in mine:
            vector_to_parameters(server.vec.clone(), model.parameters())
            gen = torch.Generator().manual_seed(rnd * 100_003 + c)
            local_fit(model, pool.data[c], args.local_epochs, args.batch, args.client_lr, gen)
            n = pool.sizes[c]
            acc[:-1] += n * (parameters_to_vector(model.parameters()).detach() - server.vec)
            acc[-1] += n
        dist.all_reduce(acc)
        server.apply(acc[:-1], acc[-1])
        if (rnd + 1) % 5 == 0:
            vector_to_parameters(server.vec.clone(), model.parameters())
            with torch.no_grad():
                x, y = pool.test[0][rank::world], pool.test[1][rank::world]
                hit = (model(x).argmax(1) == y).sum()
            dist.all_reduce(hit)
            log.info("round %d global accuracy %.3f (cohort examples %d)", rnd + 1, hit.item() / len(pool.test[1]), int(acc[-1]))

    log.info("final norm of the server model %.3f", server.vec.norm().item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
