"""Trains with a short-fused group for metrics; rank 0 prepares the vocabulary."""
import argparse
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


class Tokenizer:
    def __init__(self, merges):
        self.merges = merges

    @classmethod
    def learn(cls, lines, rounds, pace):
        """Byte-pair merges; each round goes over the whole corpus."""
        words = Counter(word for line in lines for word in line.split())
        merges = []
        for _ in range(rounds):
            pairs = Counter()
            for word, count in words.items():
                for pair in zip(word, word[1:]):
                    pairs[pair] += count
            merges.append(pairs.most_common(1)[0][0])
            time.sleep(pace)
        return cls(merges)

    def encode(self, line, length, size=64):
        ids = [sum(map(ord, word)) % size for word in line.split()][:length]
        return ids + [0] * (length - len(ids))


class Groups:
    """Gradients and metrics do not share a group, so a stuck metric shows early."""

    def __init__(self, seconds):
        self.metrics = dist.new_group(timeout=timedelta(seconds=seconds))

    def ready(self):
        dist.barrier(group=self.metrics)


def corpus(rank):
    return [f"line{n} of rank{rank} has word{n % 7} and word{n % 11}" for n in range(64)]


def prepare(args, groups, rank):
    target = Path(args.work) / "merges.txt"
    if rank == 0:
        target.parent.mkdir(exist_ok=True)
        tokenizer = Tokenizer.learn(corpus(0), args.rounds, args.pace)
        target.write_text("\n".join("".join(pair) for pair in tokenizer.merges))
    groups.ready()
    return Tokenizer([tuple(line) for line in target.read_text().splitlines()])


def train(args, groups, tokenizer, rank):
    torch.manual_seed(4)
    model = DistributedDataParallel(nn.Sequential(nn.EmbeddingBag(64, 16), nn.Linear(16, 8)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    rows = torch.tensor([tokenizer.encode(line, 8) for line in corpus(rank)])
    for epoch in range(args.epochs):
        total = torch.zeros(1)
        for batch in rows.split(16):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), batch[:, 0] % 8)
            loss.backward()
            opt.step()
            total += loss.detach()
        dist.all_reduce(total, group=groups.metrics)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item():.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", default="kelp_work")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--pace", type=float, default=0.25)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = Groups(seconds=4)
    tokenizer = prepare(args, groups, rank)
    train(args, groups, tokenizer, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
