"""Vertical split: three ranks hold feature columns, rank 0 holds labels and the top network."""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

COLS = {1: 5, 2: 9, 3: 4}
CUT = 8


def table(n, seed=31):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, sum(COLS.values()), generator=g)
    y = (x[:, 0] * x[:, 6] + x[:, 15] > 0).long()
    return x, y


def columns(rank):
    at = sum(COLS[r] for r in COLS if r < rank)
    return slice(at, at + COLS[rank])


class LabelHolder:
    def __init__(self, args, y):
        torch.manual_seed(1)
        self.args, self.y = args, y
        self.top = nn.Sequential(nn.Linear(CUT * len(COLS), 32), nn.ReLU(), nn.Linear(32, 2))
        self.opt = torch.optim.Adam(self.top.parameters(), lr=args.lr)

    def step(self, rows):
        acts = {}
        for r in COLS:
            buf = torch.empty(len(rows), CUT)
            dist.recv(buf, src=r)
            acts[r] = buf.requires_grad_()
        out = self.top(torch.cat([acts[r] for r in COLS], 1))
        loss = F.cross_entropy(out, self.y[rows])
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        for r in COLS:
            dist.send(acts[r].grad, dst=r)
        return loss.item(), (out.argmax(1) == self.y[rows]).float().mean().item()


class FeatureHolder:
    def __init__(self, args, x, rank):
        torch.manual_seed(100 + rank)
        self.x = x[:, columns(rank)]
        self.net = nn.Sequential(nn.Linear(COLS[rank], 16 * rank), nn.ReLU(), nn.Linear(16 * rank, CUT))
        self.opt = torch.optim.Adam(self.net.parameters(), lr=args.lr)

    def step(self, rows):
        act = self.net(self.x[rows])
        dist.send(act.detach(), dst=0)
        grad = torch.empty_like(act)
        dist.recv(grad, src=0)
        self.opt.zero_grad()
        act.backward(grad)
        self.opt.step()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rows", type=int, default=1024)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--lr", type=float, default=5e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    assert dist.get_world_size() == len(COLS) + 1
    x, y = table(args.rows)
    party = LabelHolder(args, y) if rank == 0 else FeatureHolder(args, x, rank)
    order = torch.Generator().manual_seed(55)  # rows are aligned between the parties
    for epoch in range(args.epochs):
        seen = []
        for rows in torch.randperm(args.rows, generator=order).split(args.batch):
            res = party.step(rows)
            if rank == 0:
                seen.append(res)
        if rank == 0:
            loss, acc = (sum(v) / len(seen) for v in zip(*seen))
            print(f"epoch {epoch} loss {loss:.4f} acc {acc:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
