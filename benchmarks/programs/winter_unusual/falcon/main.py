"""Population-based training (Jaderberg et al. 2017), one member per process."""
import argparse
import logging
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

log = logging.getLogger("falcon")


def make_task(n=6144, d=32, classes=8):
    g = torch.Generator().manual_seed(21)
    centers = torch.randn(classes * 3, d, generator=g) * 1.1
    comp = torch.randint(0, classes * 3, (n,), generator=g)
    x = centers[comp] + torch.randn(n, d, generator=g)
    y = comp % classes
    return TensorDataset(x[:-1024], y[:-1024]), (x[-1024:], y[-1024:])


class Member:
    SPACE = {"lr": (1e-4, 3e-2), "wd": (1e-5, 1e-1), "smooth": (0.005, 0.2)}

    def __init__(self, idx, data):
        self.rng = random.Random(100 + idx)
        torch.manual_seed(500 + idx)
        self.net = nn.Sequential(nn.Linear(32, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, 8))
        self.hp = {k: lo * (hi / lo) ** self.rng.random() for k, (lo, hi) in self.SPACE.items()}
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=self.hp["lr"], weight_decay=self.hp["wd"])
        self.loader = DataLoader(data, batch_size=64, shuffle=True, drop_last=True,
                                 generator=torch.Generator().manual_seed(900 + idx))
        self.batches = self._forever()

    def _forever(self):
        while True:
            yield from self.loader

    def train(self, steps):
        self.net.train()
        for _ in range(steps):
            x, y = next(self.batches)
            loss = F.cross_entropy(self.net(x), y, label_smoothing=self.hp["smooth"])
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()

    @torch.no_grad()
    def score(self, val):
        self.net.eval()
        return -F.cross_entropy(self.net(val[0]), val[1])

    def pack(self):
        parts = []
        for p in self.net.parameters():
            st = self.opt.state[p]
            parts += [p.detach().flatten(), st["exp_avg"].flatten(), st["exp_avg_sq"].flatten(), st["step"].reshape(1)]
        parts.append(torch.tensor([self.hp[k] for k in sorted(self.hp)]))
        return torch.cat(parts)

    @torch.no_grad()
    def unpack(self, flat):
        i = 0
        for p in self.net.parameters():
            st = self.opt.state[p]
            for t in (p, st["exp_avg"], st["exp_avg_sq"], st["step"]):
                t.copy_(flat[i : i + t.numel()].view_as(t))
                i += t.numel()
        self.hp = dict(zip(sorted(self.hp), flat[i:].tolist()))

    def explore(self):
        for k, (lo, hi) in self.SPACE.items():
            self.hp[k] = min(hi, max(lo, self.hp[k] * self.rng.choice((0.7, 1.4))))
        for g in self.opt.param_groups:
            g["lr"], g["weight_decay"] = self.hp["lr"], self.hp["wd"]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--generations", type=int, default=10)
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--margin", type=float, default=0.01)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    train, val = make_task()
    me = Member(rank, train)
    scores = torch.empty(world)

    for gen in range(args.generations):
        me.train(args.steps)
        dist.all_gather_into_tensor(scores, me.score(val).reshape(1))
        best, worst = int(scores.argmax()), int(scores.argmin())
        log.info("gen %d validation losses %s", gen, [round(-s, 4) for s in scores.tolist()])
        if gen + 1 < args.generations and scores[best] - scores[worst] > args.margin:
            if rank == best:
                dist.send(me.pack(), dst=worst)
            elif rank == worst:
                buf = torch.empty_like(me.pack())
                dist.recv(buf, src=best)
                me.unpack(buf)
                me.explore()

    winner = int(scores.argmax())
    hps = [None] * world
    dist.all_gather_object(hps, me.hp)
    log.info("winner: member %d with %s", winner, {k: f"{v:.2e}" for k, v in hps[winner].items()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
