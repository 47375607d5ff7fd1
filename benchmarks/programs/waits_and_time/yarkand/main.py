import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from stages import Channel, build_stage
from rows import RowSource


class Stopwatch:
    def __init__(self):
        self.t = time.perf_counter()

    def lap(self):
        now = time.perf_counter()
        d, self.t = now - self.t, now
        return d


class PipelineTrainer:
    """GPipe-style: all forwards of a batch, then all backwards, one optimizer step."""

    def __init__(self, cfg, rank, world):
        self.cfg, self.rank, self.world = cfg, rank, world
        self.first, self.last = rank == 0, rank == world - 1
        self.module = build_stage(rank, world, cfg.inputs, cfg.width, cfg.classes, cfg.seed)
        self.opt = torch.optim.SGD(self.module.parameters(), lr=cfg.lr, momentum=0.9)
        self.source = RowSource(cfg.rows, cfg.inputs, cfg.classes, cfg.seed)
        self.channel = Channel(rank, cfg.micro_rows, cfg.width)

    def plan(self, batch):
        if self.first:
            return list(batch.x.split(self.cfg.micro_rows))
        return [None] * -(-len(batch.y) // self.cfg.micro_rows)

    def forward_all(self, batch):
        kept = []
        for piece in self.plan(batch):
            inp = piece if self.first else self.channel.take_activation().requires_grad_()
            out = self.module(inp)
            if not self.last:
                self.channel.give_activation(out)
            kept.append((inp, out))
        return kept

    def backward_all(self, batch, kept):
        total = 0.0
        targets = batch.y.split(self.cfg.micro_rows) if self.last else [None] * len(kept)
        for (inp, out), y in zip(kept, targets):
            if self.last:
                loss = F.cross_entropy(out, y) / len(kept)
                loss.backward()
                total += loss.item()
            else:
                out.backward(self.channel.take_gradient(out))
            if not self.first:
                self.channel.give_gradient(inp.grad)
        return total

    def step(self, batch):
        self.opt.zero_grad()
        kept = self.forward_all(batch)
        loss = self.backward_all(batch, kept)
        self.opt.step()
        return loss

    def fit(self):
        watch = Stopwatch()
        for epoch in range(self.cfg.epochs):
            losses = [self.step(b) for b in self.source.epoch(epoch, self.cfg.batch)]
            note = torch.tensor([sum(losses) / len(losses)])
            dist.broadcast(note, src=self.world - 1)
            if self.first:
                print(f"epoch {epoch} loss {note.item():.4f} {watch.lap():.2f}s", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rows", type=int, default=736)
    p.add_argument("--inputs", type=int, default=20)
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--classes", type=int, default=5)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--micro-rows", type=int, default=16)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--seed", type=int, default=2)
    cfg = p.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    trainer = PipelineTrainer(cfg, dist.get_rank(), dist.get_world_size())
    trainer.fit()
    n = torch.tensor([sum(q.numel() for q in trainer.module.parameters())])
    dist.all_reduce(n)
    if trainer.first:
        print("parameters over all stages:", int(n), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
