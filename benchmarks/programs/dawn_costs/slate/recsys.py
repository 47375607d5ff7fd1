"""Two-tower recommender with per-user metric tracking across the ranks."""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Tower(nn.Module):
    def __init__(self, rows, dim, out):
        super().__init__()
        self.table = nn.Embedding(rows, dim)
        self.net = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, out))

    def forward(self, ids):
        return F.normalize(self.net(self.table(ids)), dim=-1)


class TwoTower(nn.Module):
    def __init__(self, users, items, dim=32, out=32):
        super().__init__()
        self.user, self.item = Tower(users, dim, out), Tower(items, dim, out)
        self.scale = nn.Parameter(torch.tensor(5.0))

    def forward(self, users, items):
        return self.scale * (self.user(users) * self.item(items)).sum(-1)


class Clicks:
    def __init__(self, users, items, rank):
        base = torch.Generator().manual_seed(77)
        self.u = torch.randn(users, 6, generator=base)
        self.i = torch.randn(items, 6, generator=base)
        self.gen = torch.Generator().manual_seed(500 + rank)

    def batch(self, n):
        users = torch.randint(self.u.shape[0], (n,), generator=self.gen)
        items = torch.randint(self.i.shape[0], (n,), generator=self.gen)
        score = (self.u[users] * self.i[items]).sum(-1)
        clicks = (torch.rand(n, generator=self.gen) < torch.sigmoid(2 * score)).float()
        return users, items, clicks


class Tracker:
    """Running click-through calibration per user, merged over all ranks."""

    def __init__(self):
        self.stats = {}

    def update(self, users, logits, clicks):
        local = [
            {"user": u, "p": p, "click": c}
            for u, p, c in zip(users.tolist(), torch.sigmoid(logits).tolist(), clicks.tolist())
        ]
        gathered = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, local)
        for part in gathered:
            for row in part:
                n, p, c = self.stats.get(row["user"], (0, 0.0, 0.0))
                self.stats[row["user"]] = (n + 1, p + row["p"], c + row["click"])

    def calibration(self):
        return sum(abs(p - c) / n for n, p, c in self.stats.values()) / max(1, len(self.stats))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--users", type=int, default=400)
    ap.add_argument("--items", type=int, default=1200)
    ap.add_argument("--batch", type=int, default=4096)
    ap.add_argument("--steps", type=int, default=240)
    ap.add_argument("--log-every", type=int, default=20)
    a = ap.parse_args()

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = DDP(TwoTower(a.users, a.items))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    clicks_data, tracker = Clicks(a.users, a.items, rank), Tracker()

    start = time.perf_counter()
    for step in range(1, a.steps + 1):
        users, items, clicks = clicks_data.batch(a.batch)
        logits = model(users, items)
        loss = F.binary_cross_entropy_with_logits(logits, clicks)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % a.log_every == 0:
            tracker.update(users, logits.detach(), clicks)
        if step % a.log_every == 0 and rank == 0:
            ms = 1e3 * (time.perf_counter() - start) / a.log_every
            print(f"{step:4d} bce {loss.item():.4f} calib {tracker.calibration():.4f} {ms:.0f} ms/it", flush=True)
            start = time.perf_counter()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
