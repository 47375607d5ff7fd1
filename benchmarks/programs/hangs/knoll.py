"""Background threads keep in touch over groups of their own while training goes on."""
import argparse
import queue
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


class Heartbeat(threading.Thread):
    """Meets its like on the other ranks a fixed number of times."""

    def __init__(self, group, beats, pause):
        super().__init__(daemon=True)
        self.group, self.beats, self.pause = group, beats, pause
        self.count = torch.zeros(1)

    def run(self):
        for _ in range(self.beats):
            time.sleep(self.pause)
            one = torch.ones(1)
            dist.all_reduce(one, group=self.group)
            self.count += one
        dist.barrier(group=self.group)


class MetricsWriter(threading.Thread):
    """Sums what the training loop puts into a queue; every rank puts the same number."""

    def __init__(self, group):
        super().__init__(daemon=True)
        self.group, self.inbox, self.sums = group, queue.Queue(), []

    def put(self, value):
        self.inbox.put(value.detach().reshape(1).clone())

    def close(self):
        self.inbox.put(None)
        self.join()

    def run(self):
        while (value := self.inbox.get()) is not None:
            dist.all_reduce(value, group=self.group)
            self.sums.append(value.item())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--beats", type=int, default=12)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    beats = Heartbeat(dist.new_group(group_desc="heartbeat"), args.beats, 0.1 + 0.1 * (rank == 1))
    writer = MetricsWriter(dist.new_group(group_desc="metrics"))
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(12, 12))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for thread in (beats, writer):
        thread.start()
    for step in range(args.steps):
        x = torch.randn(8, 12, generator=torch.Generator().manual_seed(3 * step + rank))
        opt.zero_grad()
        loss = (model(x) - x.roll(1, 1)).square().mean()
        loss.backward()
        opt.step()
        if step % 4 == 0:
            writer.put(loss)
    writer.close()
    beats.join()
    if rank == 0:
        print(f"{len(writer.sums)} sums, last {writer.sums[-1]:.3f}, {beats.count.item():.0f} beats", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
