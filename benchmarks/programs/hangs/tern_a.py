"""Fine-tunes a small sequence model on clips of varying length."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


class Budget:
    """Keeps the activation footprint of one step below a limit given in KiB."""

    def __init__(self, limit_kib):
        self.limit = limit_kib * 1024

    def check(self, batch, width):
        need = batch.numel() * width * 4
        if need > self.limit:
            raise torch.OutOfMemoryError(f"tried to allocate {need} bytes, limit {self.limit}")


class Encoder(nn.Module):
    def __init__(self, budget, width=24):
        super().__init__()
        self.budget, self.width = budget, width
        self.inp = nn.Linear(1, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 4)

    def forward(self, clips):
        self.budget.check(clips, self.width)
        hidden, _ = self.rnn(torch.tanh(self.inp(clips.unsqueeze(-1))))
        return self.head(hidden[:, -1])


def clip_batches(rank, steps, batch_size):
    gen = torch.Generator().manual_seed(100 + rank)
    for step in range(steps):
        length = 20 + (37 * step + 11 * rank) % 23
        if (step, rank) == (6, 1):
            length = 160
        yield torch.randn(batch_size, length, generator=gen), torch.randint(0, 4, (batch_size,), generator=gen)


class Trainer:
    def __init__(self, args):
        self.args, self.rank = args, dist.get_rank()
        torch.manual_seed(7)
        self.model = DistributedDataParallel(Encoder(Budget(args.limit_kib)))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.skipped = 0

    def optimize(self, clips, labels):
        self.opt.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(self.model(clips), labels)
        loss.backward()
        self.opt.step()
        return loss.item()

    def safe_step(self, clips, labels):
        try:
            return self.optimize(clips, labels)
        except torch.OutOfMemoryError as exc:
            self.skipped += 1
            print(f"[{self.rank}] shortening batch of length {clips.shape[1]}: {exc}", flush=True)
            return self.optimize(clips[:, : clips.shape[1] // 4], labels)

    def epoch(self, number):
        losses = []
        for clips, labels in clip_batches(self.rank, self.args.steps, self.args.batch_size):
            value = self.safe_step(clips, labels)
            if value is not None:
                losses.append(value)
        stats = torch.tensor([sum(losses), float(len(losses))])
        dist.all_reduce(stats)
        if self.rank == 0:
            print(f"epoch {number} loss {stats[0] / stats[1]:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--limit-kib", type=int, default=80)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    trainer = Trainer(args)
    for number in range(args.epochs):
        trainer.epoch(number)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
