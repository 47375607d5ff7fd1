import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from clients import ClientPool


def make_model(dim, classes):
    return nn.Sequential(nn.Linear(dim, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, classes))


def local_update(global_model, x, y, epochs, bsz, lr, gen):
    model = copy.deepcopy(global_model)
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    lossf = nn.CrossEntropyLoss()
    for _ in range(epochs):
        for idx in torch.randperm(len(x), generator=gen).split(bsz):
            opt.zero_grad()
            lossf(model(x[idx]), y[idx]).backward()
            opt.step()
    return parameters_to_vector(model.parameters()).detach()


@torch.no_grad()
def test_accuracy(model, x, y):
    part = slice(dist.get_rank(), None, dist.get_world_size())
    c = (model(x[part]).argmax(1) == y[part]).sum().float()
    dist.all_reduce(c)
    return c.item() / len(x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=20)
    ap.add_argument("--clients", type=int, default=12)
    ap.add_argument("--sample", type=int, default=4)
    ap.add_argument("--local-epochs", type=int, default=3)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    pool = ClientPool(args.clients)
    torch.manual_seed(args.seed)
    model = make_model(pool.dim, pool.classes)
    tx, ty = pool.test()
    mine = {c: pool.data(c) for c in range(args.clients) if c % world == rank}
    shuffles = torch.Generator().manual_seed(50 + rank)
    draw = torch.Generator().manual_seed(args.seed)

    for rnd in range(args.rounds):
        chosen = torch.randperm(args.clients, generator=draw)[: args.sample].tolist()
        start = parameters_to_vector(model.parameters()).detach()
        update = torch.zeros(len(start) + 1)
        for c in chosen:
            if c not in mine:
                continue
            x, y = mine[c]
            new = local_update(model, x, y, args.local_epochs, args.batch, args.lr, shuffles)
            update[:-1] += len(x) * (new - start)
            update[-1] += len(x)
        dist.all_reduce(update)
        vector_to_parameters(start + update[:-1] / update[-1], model.parameters())
        acc = test_accuracy(model, tx, ty)
        if rank == 0:
            print(f"round {rnd:3d} clients {sorted(chosen)} examples {int(update[-1])} acc {acc:.3f}", flush=True)

    if rank == 0:
        torch.save(model.state_dict(), "global.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
