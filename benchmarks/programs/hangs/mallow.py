"""Rollout workers and a learner; workers end at different times with a last message."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn

LEARNER = 0


class Header:
    """[kind, rows]: announces what comes next from a worker."""

    DATA, END = 1, 2

    @staticmethod
    def send(kind, rows, dst):
        dist.send(torch.tensor([kind, rows]), dst=dst)

    @staticmethod
    def recv(src):
        header = torch.zeros(2, dtype=torch.long)
        dist.recv(header, src=src)
        return header.tolist()


class Environment:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def episode(self):
        rows = int(torch.randint(0, 12, (1,), generator=self.gen))
        return torch.randn(rows, 5, generator=self.gen)


def work(rank, episodes, pace):
    env, sent = Environment(rank), 0
    for _ in range(episodes):
        data = env.episode()
        time.sleep(pace * rank)
        if not len(data):
            continue
        Header.send(Header.DATA, len(data), LEARNER)
        dist.send(data, dst=LEARNER)
        sent += 1
    Header.send(Header.END, sent, LEARNER)
    return sent


class Learner:
    def __init__(self, workers):
        torch.manual_seed(0)
        self.active = list(workers)
        self.model = nn.Linear(5, 1)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.received = 0

    def update(self, data):
        loss = (self.model(data).squeeze(1) - data.sum(dim=1)).square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def run(self):
        loss = float("nan")
        while self.active:
            for worker in list(self.active):
                kind, rows = Header.recv(worker)
                if kind == Header.END:
                    self.active.remove(worker)
                    continue
                data = torch.empty(rows, 5)
                dist.recv(data, src=worker)
                loss = self.update(data)
                self.received += 1
        return loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--pace", type=float, default=0.02)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == LEARNER:
        learner = Learner(range(1, world))
        loss = learner.run()
        print(f"{learner.received} episodes, loss {loss:.3f}", flush=True)
    else:
        sent = work(rank, args.episodes // rank, args.pace)
        print(f"[{rank}] sent {sent}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
