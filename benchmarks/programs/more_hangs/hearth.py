"""Local steps with an outer average that is applied one round late."""
import argparse
import time

import torch
import torch.distributed as dist
from torch import nn


class LateAverage:
    def __init__(self, net, momentum, lr):
        self.net = net
        self.world = dist.get_world_size()
        self.anchor = [p.detach().clone() for p in net.parameters()]
        self.velocity = [torch.zeros_like(p) for p in net.parameters()]
        self.momentum, self.lr = momentum, lr
        self.flying = []

    def launch(self):
        deltas = [a - p.detach() for a, p in zip(self.anchor, self.net.parameters())]
        self.flying.append([(d, dist.all_reduce(d, async_op=True)) for d in deltas])

    @torch.no_grad()
    def land(self):
        if not self.flying:
            return False
        batch = self.flying.pop(0)
        for _, work in reversed(batch):
            work.wait()
        for (d, _), a, v, p in zip(batch, self.anchor, self.velocity, self.net.parameters()):
            v.mul_(self.momentum).add_(d / self.world)
            a.sub_(self.lr * v)
            p.copy_(a)
        return True


class Island:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 1))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.outer = LateAverage(self.net, 0.6, 0.8)
        self.g = torch.Generator().manual_seed(self.rank)

    def inner(self):
        for _ in range(self.args.inner):
            x = torch.randn(32, 5, generator=self.g)
            loss = (self.net(x).squeeze(-1) - x[:, 0]).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            time.sleep(0.01 * (1 + self.rank))
        return loss.item()

    def run(self):
        for r in range(self.args.rounds):
            loss = self.inner()
            self.outer.launch()
            if r:
                self.outer.land()
            if self.rank == 0:
                print(f"round {r} loss {loss:.4f}", flush=True)
        while self.outer.land():
            pass


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--inner", type=int, default=30)
    args = p.parse_args()
    dist.init_process_group("gloo")
    island = Island(args)
    island.run()
    norm = torch.stack([p.detach().norm() for p in island.net.parameters()]).sum().reshape(1)
    everyone = [torch.zeros(1) for _ in range(dist.get_world_size())]
    last = dist.all_gather(everyone, norm, async_op=True)
    time.sleep(0.5)
    last.wait()
    if island.rank == 0:
        print("norms", [round(float(v), 4) for v in everyone], flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
