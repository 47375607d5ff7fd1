"""FedProx over skewed clients: every process is one client, rank 0 is also the coordinator."""
import argparse
import copy
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def client_rows(client, clients, per_client, seed):
    """Client k sees mostly classes near k and a different number of rows."""
    classes, dim = 6, 12
    centres = torch.randn(classes, dim, generator=torch.Generator().manual_seed(seed)) * 1.5
    g = torch.Generator().manual_seed(seed * 77 + client)
    count = per_client + 90 * client
    bias = torch.ones(classes)
    bias[client * classes // clients:(client + 1) * classes // clients] = 6.0
    y = torch.multinomial(bias, count, replacement=True, generator=g)
    x = centres[y] + torch.randn(count, dim, generator=g)
    return x, y


def test_rows(seed, count=600):
    classes, dim = 6, 12
    centres = torch.randn(classes, dim, generator=torch.Generator().manual_seed(seed)) * 1.5
    g = torch.Generator().manual_seed(seed + 999)
    y = torch.randint(classes, (count,), generator=g)
    return centres[y] + torch.randn(count, dim, generator=g), y


class Client:
    def __init__(self, model, rows, args, seed):
        self.model = model
        self.x, self.y = rows
        self.args = args
        self.gen = torch.Generator().manual_seed(seed)

    def local_round(self, lr):
        anchor = [p.detach().clone() for p in self.model.parameters()]
        opt = torch.optim.SGD(self.model.parameters(), lr=lr)
        losses = []
        for _ in range(self.args.local_epochs):
            order = torch.randperm(len(self.y), generator=self.gen)
            for pick in order.split(self.args.batch):
                loss = F.cross_entropy(self.model(self.x[pick]), self.y[pick])
                prox = sum((p - a).square().sum() for p, a in zip(self.model.parameters(), anchor))
                opt.zero_grad()
                (loss + 0.5 * self.args.mu * prox).backward()
                opt.step()
                losses.append(loss.item())
        return sum(losses) / len(losses), len(losses)


@torch.no_grad()
def aggregate(model, rows, momentum, velocity, server_lr):
    """Row-weighted average of client weights, then one server-side momentum move."""
    total = torch.tensor(float(rows))
    dist.all_reduce(total)
    for name, p in model.named_parameters():
        merged = p * (rows / total)
        dist.all_reduce(merged)
        v = velocity[name]
        v["buf"].mul_(momentum).add_(merged - v["global"])
        v["global"].add_(v["buf"], alpha=server_lr)
        p.copy_(v["global"])


@torch.no_grad()
def accuracy(model, rows):
    x, y = rows
    return (model(x).argmax(1) == y).float().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=8)
    ap.add_argument("--local-epochs", type=int, default=2)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--rows", type=int, default=240)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--mu", type=float, default=0.05)
    ap.add_argument("--momentum", type=float, default=0.3)
    ap.add_argument("--seed", type=int, default=4)
    ap.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "fedprox"))
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 6))
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    velocity = {n: {"global": p.detach().clone(), "buf": torch.zeros_like(p)}
                for n, p in model.named_parameters()}

    rows = client_rows(rank, world, args.rows, args.seed)
    client = Client(model, rows, args, seed=args.seed * 10 + rank)
    held = test_rows(args.seed)
    out = Path(args.out)
    best = (0.0, None)
    for rnd in range(args.rounds):
        lr = args.lr * 0.9 ** rnd
        loss, turns = client.local_round(lr)
        aggregate(model, len(rows[1]), args.momentum, velocity, server_lr=1.0)
        table = [None] * world
        dist.all_gather_object(table, {"client": rank, "rows": len(rows[1]), "turns": turns, "loss": loss})
        if rank == 0:
            acc = accuracy(model, held)
            total = sum(t["rows"] for t in table)
            mean = sum(t["loss"] * t["rows"] for t in table) / total
            print(f"round {rnd} loss {mean:.4f} accuracy {acc:.3f} turns {[t['turns'] for t in table]}", flush=True)
            if acc > best[0]:
                best = (acc, copy.deepcopy(model.state_dict()))
    if rank == 0:
        out.mkdir(parents=True, exist_ok=True)
        torch.save({"accuracy": best[0], "model": best[1]}, out / "global.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
