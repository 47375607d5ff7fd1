import argparse
import copy
import logging
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

logger = logging.getLogger("fed")


def options():
    p = argparse.ArgumentParser()
    p.add_argument("--clients", type=int, default=18)
    p.add_argument("--per-round", type=int, default=7)
    p.add_argument("--rounds", type=int, default=12)
    p.add_argument("--local-epochs", type=int, default=2)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--client-lr", type=float, default=0.08)
    p.add_argument("--server-lr", type=float, default=1.0)
    p.add_argument("--server-momentum", type=float, default=0.5)
    p.add_argument("--prox", type=float, default=0.01)
    p.add_argument("--dim", type=int, default=20)
    p.add_argument("--classes", type=int, default=6)
    p.add_argument("--seed", type=int, default=27)
    return p.parse_args()


def make_model(o):
    return nn.Sequential(nn.Linear(o.dim, 48), nn.ReLU(), nn.Linear(48, o.classes))


class ClientPool:
    """Clients with unequal sizes and skewed labels."""

    def __init__(self, o):
        g = torch.Generator().manual_seed(o.seed)
        self.centre = 1.3 * torch.randn(o.classes, o.dim, generator=g)
        self.sizes = (30 + 120 * torch.rand(o.clients, generator=g).pow(2)).long().tolist()
        self.o = o

    def data(self, client):
        g = torch.Generator().manual_seed(self.o.seed * 1000 + client)
        pref = torch.rand(self.o.classes, generator=g).pow(3) + 0.02
        y = torch.multinomial(pref, self.sizes[client], replacement=True, generator=g)
        shift = 0.3 * torch.randn(self.o.dim, generator=g)
        return self.centre[y] + shift + torch.randn(len(y), self.o.dim, generator=g), y

    def test(self, n=300):
        g = torch.Generator().manual_seed(self.o.seed + 5)
        y = torch.randint(0, self.o.classes, (n,), generator=g)
        return self.centre[y] + torch.randn(n, self.o.dim, generator=g), y


def vector(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def local_training(server, x, y, o, seed):
    model = copy.deepcopy(server)
    start = [p.detach().clone() for p in model.parameters()]
    opt = torch.optim.SGD(model.parameters(), lr=o.client_lr)
    g = torch.Generator().manual_seed(seed)
    loss = torch.zeros(())
    for _ in range(o.local_epochs):
        for idx in torch.randperm(len(x), generator=g).split(o.batch):
            loss = F.cross_entropy(model(x[idx]), y[idx])
            prox = sum((p - s).pow(2).sum() for p, s in zip(model.parameters(), start))
            opt.zero_grad()
            (loss + 0.5 * o.prox * prox).backward()
            opt.step()
    return vector(model), loss.item()


class Server:
    def __init__(self, model, o):
        self.model, self.o = model, o
        self.velocity = torch.zeros_like(vector(model))

    def apply(self, delta):
        self.velocity.mul_(self.o.server_momentum).add_(delta)
        with torch.no_grad():
            new = vector(self.model) + self.o.server_lr * self.velocity
            nn.utils.vector_to_parameters(new, self.model.parameters())


def main():
    o = options()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(o.seed)
    pool = ClientPool(o)
    server = Server(make_model(o), o)
    sampler = random.Random(o.seed)
    xt, yt = pool.test()
    for rnd in range(o.rounds):
        chosen = sampler.sample(range(o.clients), o.per_round)
        mine = sorted(chosen, key=lambda c: -pool.sizes[c])[rank::world]
        base = vector(server.model)
        acc = torch.zeros(base.numel() + 2, dtype=torch.float64)
        for client in mine:
            w, loss = local_training(server.model, *pool.data(client), o, o.seed + 7919 * rnd + client)
            n = pool.sizes[client]
            acc[:-2] += n * (w - base).double()
            acc[-2] += n * loss
            acc[-1] += n
        dist.all_reduce(acc)
        server.apply((acc[:-2] / acc[-1]).float())
        with torch.no_grad():
            part = slice(rank, None, world)
            hit = torch.tensor([server.model(xt[part]).argmax(1).eq(yt[part]).sum().item(), len(yt[part])])
        dist.all_reduce(hit)
        logger.info("round %d clients %s samples %d loss %.4f acc %.3f", rnd, chosen, int(acc[-1]),
                    acc[-2] / acc[-1], hit[0].item() / hit[1].item())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
