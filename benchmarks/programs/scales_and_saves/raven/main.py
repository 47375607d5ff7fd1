"""Signum with majority vote (1 bit per weight on the wire) on a small keyword-spotting set."""
import argparse
import csv
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class MajoritySignum(torch.optim.Optimizer):
    """Momentum stays on the process that computed it; only the signs are exchanged and voted on."""

    def __init__(self, params, lr, momentum=0.9, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        votes, where = [], []
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                m = st.setdefault("momentum", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - group["momentum"])
                votes.append(m.sign().to(torch.int8).flatten())
                where.append((p, group))
        ballot = torch.cat(votes)
        dist.all_reduce(ballot)
        at = 0
        for p, group in where:
            n = p.numel()
            direction = ballot[at:at + n].sign().to(p.dtype).view_as(p)
            at += n
            p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction, alpha=group["lr"])


class KeywordNet(nn.Module):
    def __init__(self, bands, words):
        super().__init__()
        self.c1 = nn.Conv1d(bands, 24, 5, padding=2)
        self.c2 = nn.Conv1d(24, 24, 5, padding=2, groups=4)
        self.fc = nn.Linear(48, words)

    def forward(self, x):
        h = F.relu(self.c1(x))
        h = F.relu(self.c2(F.max_pool1d(h, 2)))
        return self.fc(torch.cat([h.mean(-1), h.amax(-1)], 1))


def spoken(n, bands, frames, words, seed):
    base = torch.Generator().manual_seed(3)
    templates = torch.randn(words, bands, 12, generator=base)
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, words, (n,), generator=g)
    x = torch.randn(n, bands, frames, generator=g) * 0.9
    start = torch.randint(0, frames - 12, (n,), generator=g)
    for i in range(n):
        x[i, :, start[i]:start[i] + 12] += templates[y[i]]
    return x, y


def batches(n, size, seed, rank, world):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    for at in range(0, n - size * world + 1, size * world):
        yield order[at + rank * size:at + (rank + 1) * size]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=50)
    ap.add_argument("--table", default="signum.csv")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(args.seed)
    net = KeywordNet(16, 8)
    with torch.no_grad():
        for p in net.parameters():
            dist.broadcast(p, 0)
    opt = MajoritySignum(net.parameters(), args.lr, momentum=0.8, weight_decay=1e-3)
    x, y = spoken(960, 16, 40, 8, seed=4)
    vx, vy = spoken(240, 16, 40, 8, seed=5)
    rows = []

    for epoch in range(args.epochs):
        for g in opt.param_groups:
            g["lr"] = args.lr * 0.6 ** epoch
        s = torch.zeros(4, dtype=torch.float64)
        for idx in batches(len(x), args.batch, args.seed + epoch, rank, world):
            loss = F.cross_entropy(net(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            s[0] += loss.item()
            s[1] += 1
        with torch.no_grad():
            s[2] += (net(vx[rank::world]).argmax(1) == vy[rank::world]).sum()
            s[3] += len(vy[rank::world])
        dist.all_reduce(s)
        rows.append([epoch, (s[0] / s[1]).item(), (s[2] / s[3]).item()])
        if rank == 0:
            print("epoch {} loss {:.4f} acc {:.3f}".format(*rows[-1]), flush=True)

    if rank == 0:
        with open(args.table, "w", newline="") as f:
            csv.writer(f).writerows([["epoch", "loss", "acc"], *rows])
        torch.save(net.state_dict(), os.path.splitext(args.table)[0] + ".pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
