"""Tagging with token-budget batches and a length curriculum."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from batching import TokenBudgetCurriculum

log = logging.getLogger("tagger")
PAD = -1


def make_corpus(size, vocab, seed):
    gen = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(size):
        n = int(torch.randint(4, 41, (1,), generator=gen))
        ids = torch.randint(1, vocab, (n,), generator=gen)
        prev = torch.cat([torch.zeros(1, dtype=torch.long), ids[:-1]])
        rows.append((ids, (ids + prev) % 5))
    return rows


def collate(rows):
    width = max(len(x) for x, _ in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    tags = torch.full((len(rows), width), PAD)
    for r, (x, y) in enumerate(rows):
        ids[r, :len(x)], tags[r, :len(y)] = x, y
    return ids, tags


class Tagger(nn.Module):
    def __init__(self, vocab, hidden=64, tags=5):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden, padding_idx=0)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True)
        self.out = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, tags))

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=7)
    p.add_argument("--size", type=int, default=900)
    p.add_argument("--budget", type=int, default=640)
    p.add_argument("--vocab", type=int, default=20)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--seed", type=int, default=15)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)

    corpus = make_corpus(args.size, args.vocab, args.seed)
    lengths = [len(x) for x, _ in corpus]
    curriculum = TokenBudgetCurriculum(lengths, args.budget, rank, world, args.seed, start_len=16, step_len=4)
    model = DDP(Tagger(args.vocab))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        sums = torch.zeros(2)
        plan = curriculum.plan(epoch)
        for batch in plan:
            ids, tags = collate([corpus[i] for i in batch])
            tokens = (tags != PAD).sum().float()
            everywhere = tokens.clone()
            dist.all_reduce(everywhere)
            summed = F.cross_entropy(model(ids).flatten(0, 1), tags.flatten(), ignore_index=PAD, reduction="sum")
            optimizer.zero_grad(set_to_none=True)
            (summed * world / everywhere).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            sums += torch.tensor([summed.item(), tokens.item()])
        dist.all_reduce(sums)
        if rank == 0:
            log.info("epoch %d steps %d tokens %d loss/token %.4f", epoch, len(plan), int(sums[1]), sums[0] / sums[1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
