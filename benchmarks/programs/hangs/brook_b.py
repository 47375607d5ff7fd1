"""Class-balanced loss whose weights are worked out over all ranks and remembered."""
import argparse
import functools

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

CLASSES = 4


@functools.lru_cache(maxsize=32)
def class_weights(histogram, smoothing):
    """Inverse frequencies of the classes in the global batch."""
    counts = torch.tensor(histogram, dtype=torch.float32)
    dist.all_reduce(counts)
    weights = counts.sum() / (counts + smoothing)
    return weights / weights.sum() * CLASSES


class BalancedLoss(nn.Module):
    def __init__(self, smoothing=1.0):
        super().__init__()
        self.smoothing = smoothing

    def histogram(self, labels):
        return tuple(torch.bincount(labels, minlength=CLASSES).tolist())

    def forward(self, logits, labels):
        weights = class_weights(self.histogram(labels), self.smoothing)
        return nn.functional.cross_entropy(logits, labels, weight=weights)


class Stream:
    """Labels come in runs; the mixture of a shard changes slowly."""

    def __init__(self, rank, size):
        self.gen = torch.Generator().manual_seed(13 + rank)
        self.size = size

    def draw(self):
        labels = torch.randint(0, CLASSES, (self.size,), generator=self.gen)
        x = torch.randn(self.size, 10, generator=self.gen)
        x[:, :CLASSES] += nn.functional.one_hot(labels, CLASSES) * 2.0
        return x, labels


class Trainer:
    def __init__(self, args):
        torch.manual_seed(21)
        self.args, self.rank = args, dist.get_rank()
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, CLASSES)))
        self.criterion = BalancedLoss()
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.stream = Stream(self.rank, args.batch_size)

    def fit(self):
        for step in range(self.args.steps):
            x, labels = self.stream.draw()
            loss = self.criterion(self.model(x), labels)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if self.rank == 0 and step % 20 == 0:
                print(f"step {step} loss {loss.item():.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch-size", type=int, default=6)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    Trainer(args).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
