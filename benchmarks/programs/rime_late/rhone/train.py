"""Language identification on character counts; ranks own files of unequal length.

A rank that has run out of batches says so, and the epoch ends for all of them.
"""
import argparse
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

PROFILES = {"a": "aeiourslnt", "b": "enirstadhu", "c": "oaeinrtlsc", "d": "ktaielnsuo"}


def documents(count, seed):
    rng = random.Random(seed)
    x, y = torch.zeros(count, 26), torch.zeros(count, dtype=torch.long)
    for i in range(count):
        y[i] = rng.randrange(len(PROFILES))
        common = list(PROFILES.values())[y[i]]
        for _ in range(40):
            letter = rng.choice(common) if rng.random() < 0.35 else chr(97 + rng.randrange(26))
            x[i, ord(letter) - 97] += 0.1
    return TensorDataset(x, y)


class EpochEnd(Exception):
    pass


class Feed:
    """next() over a loader that ends on all ranks at the same step."""

    def __init__(self, loader):
        self.loader = loader

    def restart(self):
        self.batches = iter(self.loader)

    def next(self):
        try:
            batch = next(self.batches)
        except StopIteration:
            batch = None
        more = torch.tensor([batch is not None], dtype=torch.int32)
        dist.all_reduce(more, op=dist.ReduceOp.MIN)
        if not more.item():
            raise EpochEnd
        return batch


def train_epoch(model, optimizer, feed):
    feed.restart()
    steps = 0
    while True:
        try:
            x, y = feed.next()
        except EpochEnd:
            return steps
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1


def score(net, data):
    x, y = data.tensors
    net.eval()
    with torch.no_grad():
        counts = torch.tensor([(net(x).argmax(1) == y).sum().item(), len(y)], dtype=torch.float32)
    net.train()
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--documents", type=int, default=1900)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=160)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    own = documents(args.documents + 37 * rank, seed=40 + rank)
    held = documents(300, seed=80 + rank)
    loader = DataLoader(own, args.batch, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(rank))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(26, args.hidden), nn.ReLU(), nn.Linear(args.hidden, args.hidden), nn.ReLU(),
                        nn.Linear(args.hidden, len(PROFILES)))
    model = DDP(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    feed = Feed(loader)
    for epoch in range(args.epochs):
        steps = train_epoch(model, optimizer, feed)
        accuracy = score(net, held)
        if rank == 0:
            print(f"epoch {epoch}: {steps} steps, held-out accuracy {accuracy:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
