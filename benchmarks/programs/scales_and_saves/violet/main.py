"""Next-item retrieval (two towers, in-batch negatives), best epoch chosen by MRR on held-out visits."""
import argparse
import json
import os
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

ITEMS, USERS, TOPICS = 120, 60, 6


class Visits:
    """Shop visits. Kiosk accounts come back all day long, private ones now and then."""

    def __init__(self, seed=0):
        rng = random.Random(seed)
        self.train, self.held = [], {}
        for uid in range(USERS):
            kiosk = uid % 10 in (1, 3, 7)
            taste = [rng.random() ** (6 if kiosk else 1) for _ in range(TOPICS)]
            visits = [self._visit(rng, taste, 5 if kiosk else 1) for _ in range(90 if kiosk else 9)]
            cut = len(visits) * 2 // 3
            self.train += [(uid, *v) for v in visits[:cut]]
            self.held[uid] = visits[cut:]

    @staticmethod
    def _visit(rng, taste, habit):
        topic = rng.choices(range(TOPICS), taste)[0]
        pick = lambda: topic + TOPICS * int(rng.random() ** habit * ITEMS / TOPICS)
        return pick(), pick()


class Towers(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.user, self.prev = nn.Embedding(USERS, dim), nn.Embedding(ITEMS, dim)
        self.item = nn.Embedding(ITEMS, dim)
        self.mix = nn.Sequential(nn.Linear(2 * dim, 32), nn.ReLU(), nn.Linear(32, dim))

    def query(self, u, p):
        return F.normalize(self.mix(torch.cat([self.user(u), self.prev(p)], -1)), dim=-1)

    def forward(self, u, p, i):
        return self.query(u, p) @ F.normalize(self.item(i), dim=-1).t() * 8.0


def reciprocal_ranks(net, held, rank, world):
    """Accounts are dealt out to the processes by number."""
    found = []
    every = torch.arange(ITEMS)
    with torch.no_grad():
        for uid, visits in held.items():
            if uid % world != rank:
                continue
            p, i = map(torch.tensor, zip(*visits))
            scores = net(torch.full_like(p, uid), p, every)
            place = (scores > scores.gather(1, i[:, None])).sum(1) + 1
            found.append(1.0 / place.double())
    return torch.cat(found)


def mean_over_processes(values):
    out = values.mean()
    dist.all_reduce(out)
    return (out / dist.get_world_size()).item()


class BestKeeper:
    def __init__(self, folder, rank):
        self.folder, self.rank, self.best, self.epoch = folder, rank, -1.0, None

    def offer(self, epoch, score, net):
        if score <= self.best:
            return
        self.best, self.epoch = score, epoch
        if self.rank == 0:
            os.makedirs(self.folder, exist_ok=True)
            torch.save({"epoch": epoch, "mrr": score, "net": net.state_dict()},
                       os.path.join(self.folder, "best.pt"))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=12)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=1.5e-2)
    ap.add_argument("--folder", default="towers")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(33)
    visits = Visits()
    rows = TensorDataset(*(torch.tensor(c) for c in zip(*visits.train)))
    sampler = DistributedSampler(rows, seed=2, drop_last=True)
    loader = DataLoader(rows, args.batch, sampler=sampler, drop_last=True)
    net = DDP(Towers())
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    keeper = BestKeeper(args.folder, rank)
    log = []

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        net.train()
        total = torch.zeros(2, dtype=torch.float64)
        for u, p, i in loader:
            scores = net(u, p, i)
            same = (i[:, None] == i[None]) & ~torch.eye(len(i), dtype=torch.bool)
            loss = F.cross_entropy(scores.masked_fill(same, -1e4), torch.arange(len(i)))
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += torch.tensor([loss.item(), 1.0], dtype=torch.float64)
        dist.all_reduce(total)
        net.eval()
        mrr = mean_over_processes(reciprocal_ranks(net.module, visits.held, rank, world))
        keeper.offer(epoch, mrr, net.module)
        log.append({"epoch": epoch, "loss": (total[0] / total[1]).item(), "mrr": mrr})
        if rank == 0:
            print(f"epoch {epoch} loss {log[-1]['loss']:.4f} MRR {mrr:.4f}", flush=True)

    if rank == 0:
        print("best epoch", keeper.epoch)
        with open(os.path.join(args.folder, "log.json"), "w") as f:
            json.dump(log, f, indent=1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
