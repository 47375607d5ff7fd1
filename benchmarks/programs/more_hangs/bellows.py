"""Each rank owns a different amount of audio, all of it is used."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


class Clips:
    amounts = (5, 13, 8)

    def __init__(self, rank):
        self.g = torch.Generator().manual_seed(rank)
        self.n = self.amounts[rank % len(self.amounts)]

    def __iter__(self):
        for _ in range(self.n):
            frames = int(torch.randint(30, 60, (1,), generator=self.g))
            x = torch.randn(4, frames, 10, generator=self.g)
            yield x, x.mean((1, 2))


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(10, 16, batch_first=True)
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1]).squeeze(-1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = DistributedDataParallel(Listener())
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    used = 0
    for epoch in range(args.epochs):
        with Join([net]):
            for x, y in Clips(rank):
                loss = (net(x) - y).pow(2).mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
                used += len(x)
        counts = [None] * world
        dist.all_gather_object(counts, used)
        if rank == world - 1:
            print(f"epoch {epoch} clips per rank {counts}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
