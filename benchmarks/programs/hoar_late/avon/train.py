"""Learner and actors: actors produce transitions at different speeds and different amounts."""
import argparse
import time

import torch
import torch.distributed as dist
from torch import nn

from messages import Kind, Link


def actor(link, rank, episodes):
    g = torch.Generator().manual_seed(rank)
    state = torch.randn(4, generator=g)
    for _ in range(episodes):
        rows = []
        for _ in range(int(torch.randint(3, 12, (1,), generator=g))):
            action = torch.randn(1, generator=g)
            nxt = 0.9 * state + 0.1 * action
            rows.append(torch.cat([state, action, nxt]))
            state = nxt
        link.send(Kind.SAMPLE, 0, torch.stack(rows))
        time.sleep(0.02 * rank)
    link.send(Kind.STOP, 0)


class Learner:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 4))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=3e-3)

    def update(self, rows):
        loss = nn.functional.mse_loss(self.model(rows[:, :5]), rows[:, 5:])
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def run(self, link):
        alive = set(range(1, dist.get_world_size()))
        count = {r: 0 for r in alive}
        while alive:
            src, kind, rows = link.recv_any()
            if kind is Kind.STOP:
                alive.discard(src)
                print(f"actor {src} stopped after {count[src]} episodes", flush=True)
                continue
            count[src] += 1
            loss = self.update(rows)
            if sum(count.values()) % 50 == 0:
                print(f"{sum(count.values())} episodes, loss {loss:.5f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--episodes", type=int, default=40)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    link = Link(width=9)
    if rank == 0:
        Learner().run(link)
    else:
        actor(link, rank, episodes=args.episodes * rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
