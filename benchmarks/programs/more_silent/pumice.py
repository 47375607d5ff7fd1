"""Federated averaging with personal batch norm (FedBN): skewed labels, weights by row count, not everybody each round."""
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

ROUNDS, LOCAL_EPOCHS, CLASSES, DIM = 9, 1, 4, 12


def client_rows(client):
    shared = torch.Generator().manual_seed(0)
    centre = torch.randn(CLASSES, DIM, generator=shared)
    g = torch.Generator().manual_seed(10 + client)
    n = 90 + 45 * client
    prior = torch.full((CLASSES,), 0.2)
    prior[client % CLASSES] = 1.0
    y = torch.multinomial(prior, n, replacement=True, generator=g)
    shift = 0.5 * torch.randn(DIM, generator=g)
    return TensorDataset(centre[y] + torch.randn(n, DIM, generator=g) + shift, y)


def make_net():
    return nn.Sequential(nn.Linear(DIM, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, CLASSES))


def travelling(net):
    """Everything but the norm layers, which stay at home."""
    own = {id(p) for m in net.modules() if isinstance(m, nn.BatchNorm1d) for p in m.parameters()}
    return [p for p in net.parameters() if id(p) not in own]


def local_training(net, loader, lr):
    opt = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    for _ in range(LOCAL_EPOCHS):
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            opt.step()


@torch.no_grad()
def average(net, weight):
    total = torch.tensor(float(weight))
    dist.all_reduce(total)
    for p in travelling(net):
        p.mul_(weight / total)
        dist.all_reduce(p.data)


def main():
    dist.init_process_group("gloo")
    me, clients = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    net = make_net()
    rows = client_rows(me)
    loader = DataLoader(rows, batch_size=15, shuffle=True, generator=torch.Generator().manual_seed(me))
    dice = random.Random(99)                       # the same draw everywhere
    for rnd in range(ROUNDS):
        invited = dice.sample(range(clients), max(2, clients - 1))
        if me in invited:
            local_training(net, loader, lr=0.05 * 0.9 ** rnd)
        average(net, len(rows) if me in invited else 0)
        net.eval()
        with torch.no_grad():
            hit = torch.tensor([(net(rows.tensors[0]).argmax(1) == rows.tensors[1]).sum().item(), len(rows)])
        net.train()
        dist.all_reduce(hit)
        if me == 0:
            print(f"round {rnd}: clients {sorted(invited)}, personal accuracy {hit[0] / hit[1]:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
