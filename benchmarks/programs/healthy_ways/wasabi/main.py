"""Ranks with different amounts of local data, trained together under the Join context."""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

HOSPITALS = (1500, 980, 1240)


def records(site, n, seed):
    g = torch.Generator().manual_seed(seed)
    age = torch.rand(n, 1, generator=g)
    x = torch.cat([age, torch.randn(n, 13, generator=g) + 0.15 * site], 1)
    w = torch.randn(14, generator=torch.Generator().manual_seed(3))
    risk = (x @ w) + 1.5 * (x[:, 1] * x[:, 2]).tanh() - 0.5
    return TensorDataset(x, (risk > 0).float())


class TallyHook(JoinHook):
    def __init__(self, tally):
        self.tally = tally

    def main_hook(self):
        self.tally.shadow()


class Tally(Joinable):
    """Sums numbers over the ranks that still have data; the others shadow with zeros."""

    def __init__(self, size):
        super().__init__()
        self.total = torch.zeros(size)

    def add(self, values):
        Join.notify_join_context(self)
        v = values.clone()
        dist.all_reduce(v)
        self.total += v

    def shadow(self):
        v = torch.zeros_like(self.total)
        dist.all_reduce(v)
        self.total += v

    def join_hook(self, **kwargs):
        return TallyHook(self)

    @property
    def join_device(self):
        return torch.device("cpu")

    @property
    def join_process_group(self):
        return dist.group.WORLD

    def reset(self):
        out, self.total = self.total, torch.zeros_like(self.total)
        return out


class RiskNet(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(14, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.body(x)).squeeze(-1)


@torch.no_grad()
def evaluate(net, data):
    net.eval()
    x, y = data.tensors
    logit = net(x)
    s = torch.tensor([F.binary_cross_entropy_with_logits(logit, y, reduction="sum").item(),
                      ((logit > 0).float() == y).sum().item(), float(len(y))])
    dist.all_reduce(s)
    net.train()
    return (s[0] / s[2]).item(), (s[1] / s[2]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=0.25)
    ap.add_argument("--seed", type=int, default=61)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    n = HOSPITALS[rank % len(HOSPITALS)]
    train, held = records(rank, n, 10 + rank), records(rank, n // 5, 50 + rank)
    gen = torch.Generator().manual_seed(args.seed + rank)
    loader = DataLoader(train, batch_size=args.batch, shuffle=True, generator=gen)
    model = DDP(RiskNet())
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, weight_decay=1e-4)
    tally = Tally(3)
    for epoch in range(args.epochs):
        for g in opt.param_groups:
            g["lr"] = args.lr * (1 - epoch / args.epochs)
        t0, steps = time.perf_counter(), 0
        with Join([model, tally], divide_by_initial_world_size=False):
            for x, y in loader:
                logit = model(x)
                loss = F.binary_cross_entropy_with_logits(logit, y)
                opt.zero_grad(set_to_none=True)
                loss.backward()
                opt.step()
                hits = ((logit > 0).float() == y).sum()
                tally.add(torch.tensor([loss.item() * len(y), hits.item(), float(len(y))]))
                steps += 1
        busy = time.perf_counter() - t0
        got = tally.reset()
        info = [None] * world
        dist.all_gather_object(info, (steps, round(busy, 2)))
        nll, acc = evaluate(model.module, held)
        if rank == 0:
            print(f"epoch {epoch} records {int(got[2])} loss {(got[0] / got[2]).item():.4f} train {(got[1] / got[2]).item():.3f} "
                  f"held {nll:.4f}/{acc:.3f} (steps, seconds) {info}", flush=True)
    if rank == 0:
        os.makedirs("runs/wasabi", exist_ok=True)
        torch.save(model.module.state_dict(), "runs/wasabi/risk.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
