"""Several makers send episodes of any length at their own pace, the first rank learns from them."""
import argparse
import time

import torch
import torch.distributed as dist
from torch import nn

HEAD, BODY, REPLY = 1, 2, 3


class Maker:
    def __init__(self, rank, args):
        self.rank = rank
        self.count = args.episodes + 3 * (rank - 1)
        self.pace = args.pace * rank
        self.weight = torch.zeros(4)
        self.g = torch.Generator().manual_seed(rank)

    def run(self):
        for e in range(self.count):
            time.sleep(self.pace)
            rows = int(torch.randint(3, 12, (1,), generator=self.g))
            obs = torch.randn(rows, 4, generator=self.g)
            body = torch.cat([obs, (obs * self.weight).sum(1, keepdim=True) + obs[:, :1]], 1)
            wants = int(e % 4 == 3)
            dist.send(torch.tensor([rows, wants]), dst=0, tag=HEAD)
            dist.send(body, dst=0, tag=BODY)
            if wants:
                dist.recv(self.weight, src=0, tag=REPLY)
        dist.send(torch.tensor([0, 0]), dst=0, tag=HEAD)


class Learner:
    def __init__(self, world):
        self.open = world - 1
        self.net = nn.Linear(4, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.taken = {}

    def learn(self, body):
        loss = (self.net(body[:, :4]) - body[:, 4:]).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()

    def run(self):
        head = torch.zeros(2, dtype=torch.long)
        while self.open:
            origin = dist.recv(head, tag=HEAD)
            rows, wants = head.tolist()
            if rows == 0:
                self.open -= 1
                continue
            body = torch.empty(rows, 5)
            dist.recv(body, src=origin, tag=BODY)
            self.learn(body)
            self.taken[origin] = self.taken.get(origin, 0) + 1
            if wants:
                dist.send(self.net.weight.detach()[0].clone() * 0.1, dst=origin, tag=REPLY)
        return self.taken


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--episodes", type=int, default=10)
    p.add_argument("--pace", type=float, default=0.08)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank:
        Maker(rank, args).run()
    else:
        print("episodes", sorted(Learner(world).run().items()), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
