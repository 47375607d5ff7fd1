"""Training with a thread on every rank that exchanges how far each has come, on a group of its own."""

import argparse
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Pulse(threading.Thread):
    def __init__(self, group, beats, pause):
        super().__init__(daemon=True)
        self.group, self.beats, self.pause = group, beats, pause
        self.step, self.slowest = 0, []

    def run(self):
        for _ in range(self.beats):
            time.sleep(self.pause)
            here = torch.tensor([self.step])
            dist.all_reduce(here, op=dist.ReduceOp.MIN, group=self.group)
            self.slowest.append(here.item())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--beats", type=int, default=10)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    pulse = Pulse(dist.new_group(), args.beats, 1.0)
    gen = torch.Generator().manual_seed(2)
    x = torch.randn(384, 6, generator=gen)
    data = TensorDataset(x, (x[:, 0] > x[:, 1]).long())
    sampler = DistributedSampler(data, shuffle=True, seed=8)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_fn = nn.CrossEntropyLoss()
    pulse.start()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for rows, label in loader:
            time.sleep(0.3)
            loss = loss_fn(model(rows), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            pulse.step += 1
    pulse.join()
    if rank == 0:
        print(f"loss {loss.item():.3f} slowest {pulse.slowest}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
