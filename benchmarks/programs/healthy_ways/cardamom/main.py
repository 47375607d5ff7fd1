"""Federated averaging: private, uneven, label-skewed clients, one per rank."""
import argparse
import json
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from client import Client

CLASSES, DIM = 6, 24
SIZES = [900, 420, 240, 600]


def population(n, seed, mix=None):
    proto = 1.1 * torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(4))
    g = torch.Generator().manual_seed(seed)
    probs = torch.ones(CLASSES) if mix is None else mix
    y = torch.multinomial(probs, n, replacement=True, generator=g)
    x = proto[y] + 1.3 * torch.randn(n, DIM, generator=g)
    return x, y


def skew(rank, strength=6.0):
    mix = torch.ones(CLASSES)
    for k in range(2):
        mix[(2 * rank + k) % CLASSES] += strength
    return mix


def make_model(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(DIM, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, CLASSES))


class Server:
    """The same bookkeeping on every rank: weights by client size, momentum on the round update."""

    def __init__(self, model, momentum):
        self.model, self.momentum = model, momentum
        self.flat = parameters_to_vector(model.parameters()).detach().clone()
        dist.broadcast(self.flat, src=0)
        self.velocity = torch.zeros_like(self.flat)

    def download(self):
        vector_to_parameters(self.flat.clone(), self.model.parameters())

    def aggregate(self, seen, taking_part):
        local = parameters_to_vector(self.model.parameters()).detach()
        weight = torch.tensor(float(seen if taking_part else 0))
        spread = (local - self.flat).norm().reshape(1)
        delta = (local - self.flat) * weight
        dist.all_reduce(delta)
        dist.all_reduce(weight)
        self.velocity.mul_(self.momentum).add_(delta / weight)
        self.flat.add_(self.velocity)
        spreads = [torch.empty(1) for _ in range(dist.get_world_size())]
        dist.all_gather(spreads, spread)
        return [round(s.item(), 3) for s in spreads]


def chosen(round_, world, seed):
    """The clients of a round; everyone draws the same list."""
    if world < 3 or round_ % 3 != 2:
        return list(range(world))
    g = torch.Generator().manual_seed(seed * 100 + round_)
    return sorted(torch.randperm(world, generator=g)[: world - 1].tolist())


@torch.no_grad()
def accuracy(model, x, y, rank, world):
    model.eval()
    xs, ys = x[rank::world], y[rank::world]
    s = torch.tensor([(model(xs).argmax(1) == ys).sum().item(), len(ys)], dtype=torch.float64)
    dist.all_reduce(s)
    return (s[0] / s[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=8)
    ap.add_argument("--local-epochs", type=int, default=2)
    ap.add_argument("--batch", type=int, default=30)
    ap.add_argument("--lr", type=float, default=0.03)
    ap.add_argument("--mu", type=float, default=0.01)
    ap.add_argument("--momentum", type=float, default=0.3)
    ap.add_argument("--seed", type=int, default=19)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    client = Client(rank, *population(SIZES[rank % len(SIZES)], 100 + rank, skew(rank)), args.batch, args.seed + rank)
    test_x, test_y = population(900, 7)
    server = Server(make_model(args.seed), args.momentum)
    history = []
    for r in range(args.rounds):
        server.download()
        picks = chosen(r, world, args.seed)
        loss, seen = 0.0, 0
        if rank in picks:
            loss, seen = client.fit(server.model, args.local_epochs, args.lr * 0.9 ** r, args.mu)
        spread = server.aggregate(seen, rank in picks)
        server.download()
        acc = accuracy(server.model, test_x, test_y, rank, world)
        rows = [None] * world
        dist.all_gather_object(rows, {"rank": rank, "size": client.size, "seen": seen, "loss": round(loss, 4)})
        history.append({"round": r, "clients": picks, "accuracy": acc, "spread": spread, "rows": rows})
        if rank == 0:
            print(f"round {r} clients {picks} accuracy {acc:.3f} spread {spread} "
                  f"losses {[x['loss'] for x in rows]}", flush=True)
    if rank == 0:
        os.makedirs("runs/cardamom", exist_ok=True)
        with open("runs/cardamom/rounds.json", "w") as f:
            json.dump(history, f, indent=1)
        torch.save(server.model.state_dict(), "runs/cardamom/server.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
