"""Curriculum over sequence length, with the batch in tokens and the accumulation growing by stage."""
import argparse
import contextlib
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Stage:
    updates: int
    length: int
    batch: int
    accumulate: int


STAGES = [Stage(24, 16, 8, 1), Stage(20, 32, 8, 2), Stage(16, 64, 8, 2), Stage(12, 96, 8, 3)]


class CopyTask:
    """Predict the token seen ``lag`` positions ago."""

    def __init__(self, vocab, rank, lag=3):
        self.vocab, self.lag = vocab, lag
        self.gen = torch.Generator().manual_seed(70 + rank)

    def batch(self, n, length):
        x = torch.randint(0, self.vocab, (n, length), generator=self.gen)
        return x[:, self.lag:], x[:, :-self.lag]


class TinyTransformer(nn.Module):
    def __init__(self, vocab, dim=96, limit=128):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(limit, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 3 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        n = x.shape[1]
        mask = torch.triu(torch.full((n, n), float("-inf")), diagonal=1)
        return self.out(self.body(self.tok(x) + self.pos.weight[:n], mask=mask))


def run_stage(stage, model, optimizer, scheduler, task):
    history = []
    for _ in range(stage.updates):
        total = 0.0
        for i in range(stage.accumulate):
            last = i == stage.accumulate - 1
            with contextlib.nullcontext() if last else model.no_sync():
                x, y = task.batch(stage.batch, stage.length)
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / stage.accumulate
                loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        history.append(total)
    return torch.stack(history)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=48)
    p.add_argument("--lr", type=float, default=2e-3)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(TinyTransformer(args.vocab))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    total = sum(s.updates for s in STAGES)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min(1.0, (i + 1) / 10) * (1 - 0.8 * i / total)
    )
    task = CopyTask(args.vocab, rank)
    for number, stage in enumerate(STAGES):
        t0 = time.time()
        losses = run_stage(stage, model, optimizer, scheduler, task)
        dist.all_reduce(losses)
        losses /= world
        if rank == 0:
            print(f"stage {number} length {stage.length} x{stage.accumulate} loss {losses[0]:.3f} -> {losses[-1]:.3f} "
                  f"{(time.time() - t0) / stage.updates:.2f} s/update", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
