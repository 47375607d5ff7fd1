"""Fine-tune a small review scorer on length-filtered shards with gradient accumulation."""
import argparse
import contextlib
import random
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


@dataclass
class Settings:
    total_reviews: int
    max_tokens: int
    batch: int
    accumulate: int
    lr: float
    vocab: int = 400


class ReviewShard(Dataset):
    def __init__(self, cfg, rank, world):
        dice = random.Random(11)
        lengths = [dice.randint(6, 48) for _ in range(cfg.total_reviews)]
        self.cfg = cfg
        self.rows = [(i, n) for i, n in enumerate(lengths) if i % world == rank and n <= cfg.max_tokens]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, k):
        index, length = self.rows[k]
        g = torch.Generator().manual_seed(index)
        tokens = torch.randint(1, self.cfg.vocab, (length,), generator=g)
        return tokens, torch.tensor(float(tokens.float().mean() > self.cfg.vocab / 2))


def pad(samples):
    tokens = nn.utils.rnn.pad_sequence([s[0] for s in samples], batch_first=True)
    return tokens, torch.stack([s[1] for s in samples])


class Scorer(nn.Module):
    def __init__(self, vocab, width=24):
        super().__init__()
        self.emb = nn.EmbeddingBag(vocab, width, padding_idx=0)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, tokens):
        return self.mlp(self.emb(tokens)).squeeze(-1)


class Accumulator:
    def __init__(self, every, total):
        self.every = every
        self.total = total

    def closes(self, i):
        return (i + 1) % self.every == 0 or i + 1 == self.total


def shared_length(n):
    box = torch.tensor([n])
    dist.all_reduce(box, op=dist.ReduceOp.MIN)
    return int(box)


class Finetuner:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        self.net = DistributedDataParallel(Scorer(cfg.vocab))
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=cfg.lr)
        self.loader = DataLoader(ReviewShard(cfg, self.rank, self.world), batch_size=cfg.batch, collate_fn=pad)

    def micro_step(self, tokens, target, closing):
        guard = contextlib.nullcontext() if closing else self.net.no_sync()
        with guard:
            loss = nn.functional.binary_cross_entropy_with_logits(self.net(tokens), target)
            (loss / self.cfg.accumulate).backward()
        return float(loss.detach())

    def epoch(self):
        steps = len(self.loader)
        windows = Accumulator(self.cfg.accumulate, steps)
        history = []
        for i, (tokens, target) in zip(range(steps), self.loader):
            closing = windows.closes(i)
            history.append(self.micro_step(tokens, target, closing))
            if closing:
                self.opt.step()
                self.opt.zero_grad()
        return history


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--reviews", type=int, default=132)
    p.add_argument("--max-tokens", type=int, default=36)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--accumulate", type=int, default=4)
    p.add_argument("--lr", type=float, default=3e-3)
    a = p.parse_args()
    dist.init_process_group("gloo")
    tuner = Finetuner(Settings(a.reviews, a.max_tokens, a.batch, a.accumulate, a.lr))
    history = tuner.epoch()
    curves = [None] * dist.get_world_size()
    dist.all_gather_object(curves, history)
    if dist.get_rank() == 0:
        print("final losses", [round(c[-1], 3) for c in curves], flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
