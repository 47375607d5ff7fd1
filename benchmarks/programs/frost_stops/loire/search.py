import argparse
import random

import torch
import torch.distributed as dist
from torch import nn

from sync import collect, deliver, publish, receive


def task():
    g = torch.Generator().manual_seed(2)
    x = torch.randn(400, 10, generator=g)
    y = (x[:, 0] * x[:, 1] + x[:, 2]).unsqueeze(1)
    return x[:300], y[:300], x[300:], y[300:]


def trial(lr, width, data, steps=30):
    xt, yt, xv, yv = data
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, width), nn.Tanh(), nn.Linear(width, 1))
    opt = torch.optim.Adam(net.parameters(), lr=lr)
    for _ in range(steps):
        loss = (net(xt) - yt).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        return (net(xv) - yv).square().mean()


class Leader:
    def __init__(self, rounds, world, seed=4):
        self.rng = random.Random(seed)
        self.centre, self.spread = -2.0, 1.0
        self.rounds, self.world = rounds, world
        self.best = (float("inf"), None)

    def run(self, data):
        for r in range(self.rounds):
            lrs = [10 ** (self.centre + self.spread * self.rng.uniform(-1, 1)) for _ in range(self.world)]
            plan = publish(lrs)
            scores = collect(trial(plan[0].item(), 16, data))
            k = int(scores.argmin())
            if scores[k].item() < self.best[0]:
                self.best = (scores[k].item(), lrs[k])
                self.centre = float(torch.tensor(lrs[k]).log10())
            self.spread *= 0.8
            print(f"round {r} best {self.best[0]:.4f} lr {self.best[1]:.5f}", flush=True)
        publish([])


class Follower:
    def run(self, data):
        while True:
            plan = receive()
            if plan.numel() == 0:
                return
            deliver(trial(plan[dist.get_rank()].item(), 16, data))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=12)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    role = Leader(args.rounds, dist.get_world_size()) if dist.get_rank() == 0 else Follower()
    role.run(task())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
