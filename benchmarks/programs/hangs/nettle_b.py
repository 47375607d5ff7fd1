"""Corpus statistics before training: lengths, documents, longest sample."""
import argparse
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


@dataclass
class Sample:
    text: str
    quality: float


class Filter:
    def __init__(self, threshold):
        self.threshold = threshold

    def __call__(self, sample):
        return sample.quality >= self.threshold and len(sample.text) > 3


def read_shard(rank, count):
    """The later the shard, the worse the crawl."""
    gen = torch.Generator().manual_seed(rank)
    for number in range(count):
        quality = float(torch.rand(1, generator=gen)) / (1 + rank)
        yield Sample(f"document {number} " * (1 + number % 3), quality)


class Statistics:
    def __init__(self):
        self.lengths = []

    def add(self, sample):
        self.lengths.append(len(sample.text.split()))

    def merge(self):
        lengths = torch.tensor(self.lengths, dtype=torch.long)
        total = lengths.sum()
        count = torch.tensor(len(self.lengths))
        dist.all_reduce(total)
        dist.all_reduce(count)
        return int(total), int(count)


def positions(tokens, documents):
    return max(4, round(tokens / max(documents, 1)))


class Regressor(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(length, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def train(length, steps):
    torch.manual_seed(0)
    model = DistributedDataParallel(Regressor(length))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        x = torch.randn(8, length)
        opt.zero_grad()
        loss = (model(x) - x.sum(dim=1)).square().mean()
        loss.backward()
        opt.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=40)
    parser.add_argument("--quality", type=float, default=0.4)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    keep, statistics = Filter(args.quality), Statistics()
    for sample in read_shard(rank, args.documents):
        if keep(sample):
            statistics.add(sample)
    tokens, documents = statistics.merge()
    loss = train(positions(tokens, documents), args.steps)
    if rank == 0:
        print(f"{documents} documents, {tokens} words, loss {loss:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
