"""Population based training: one member per process, truncation selection."""
import argparse
import copy
import os
import random
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def make_data(n, dim, classes, seed):
    centers = torch.randn(classes, dim, generator=torch.Generator().manual_seed(2)) * 0.35
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=g)
    return centers[y] + torch.randn(n, dim, generator=g), y


class Member:
    def __init__(self, uid, args):
        self.uid = uid
        g = random.Random(uid)
        self.hp = dict(lr=10 ** g.uniform(-3, -1), wd=10 ** g.uniform(-5, -2))
        torch.manual_seed(uid)
        self.net = nn.Sequential(nn.Linear(args.dim, args.width), nn.ReLU(), nn.Linear(args.width, args.width),
                                 nn.ReLU(), nn.Linear(args.width, args.classes))
        self.opt = torch.optim.SGD(self.net.parameters(), momentum=0.9, lr=self.hp["lr"], weight_decay=self.hp["wd"])
        self.gen = torch.Generator().manual_seed(uid + 50)
        self.parent = uid

    def set_hp(self):
        for g in self.opt.param_groups:
            g["lr"], g["weight_decay"] = self.hp["lr"], self.hp["wd"]

    def learn(self, x, y, steps, batch):
        total = 0.0
        for _ in range(steps):
            i = torch.randint(len(x), (batch,), generator=self.gen)
            loss = F.cross_entropy(self.net(x[i]), y[i])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            total += loss.item()
        return total / steps

    @torch.no_grad()
    def score(self, x, y):
        return (self.net(x).argmax(1) == y).float().mean().item()

    def pack(self):
        return dict(net=self.net.state_dict(), opt=copy.deepcopy(self.opt.state_dict()), hp=dict(self.hp))

    def adopt(self, s, parent):
        self.net.load_state_dict(s["net"])
        self.opt.load_state_dict(s["opt"])
        self.hp, self.parent = dict(s["hp"]), parent

    def perturb(self, rng):
        for k in self.hp:
            self.hp[k] *= rng.choice([0.8, 1.25])
        self.set_hp()


def main():
    p = argparse.ArgumentParser()
    for k, v in dict(dim=64, width=128, classes=20, batch=64, rounds=9, steps=35, seasons=3).items():
        p.add_argument("--" + k, type=int, default=v)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    box = [tempfile.mkdtemp(prefix="pbt-") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    x, y = make_data(5000, args.dim, args.classes, 7)
    vx, vy = make_data(1500, args.dim, args.classes, 8)
    rng = random.Random(100 + rank)

    for season in range(args.seasons):
        # the scheduler hands out members to slots in a new order every season
        uid = (rank + season) % world
        me = Member(uid, args)
        f = os.path.join(box[0], f"member{uid}.pt")
        if os.path.exists(f):
            s = torch.load(f, weights_only=False)
            me.adopt(s, s["parent"])
            me.gen.set_state(s["gen"])
        for rnd in range(args.rounds // args.seasons):
            loss = me.learn(x, y, args.steps, args.batch)
            table = [None] * world
            dist.all_gather_object(table, (me.score(vx, vy), me.uid, rank))
            table.sort()
            worst, best = table[0][2], table[-1][2]
            obj = [me.pack() if rank == best else None]
            dist.broadcast_object_list(obj, src=best)
            if rank == worst and table[-1][0] > table[0][0]:
                me.adopt(obj[0], table[-1][1])
                me.perturb(rng)
            if rank == 0:
                print(f"season {season} round {rnd} loss {loss:.3f} " +
                      " ".join(f"m{u}:{s:.3f}" for s, u, _ in sorted(table, key=lambda t: t[1])), flush=True)
        torch.save(dict(me.pack(), gen=me.gen.get_state(), parent=me.parent), f)
        dist.barrier()

    if rank == 0:
        shutil.rmtree(box[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
