"""Sequence tagging with accumulation, loss normalised by the number of real tokens."""
import argparse
import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

IGNORE = -100


class Tagger(nn.Module):
    def __init__(self, vocab=40, d=32, tags=5):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.conv = nn.Conv1d(d, d, 3, padding=1)
        self.out = nn.Linear(d, tags)

    def forward(self, ids):
        h = self.emb(ids)
        h = h + F.relu(self.conv(h.transpose(1, 2)).transpose(1, 2))
        return self.out(h)


def micro_batches(rank, steps, accum, bs, width=24):
    g = torch.Generator().manual_seed(610 + rank)
    for _ in range(steps):
        group = []
        for _ in range(accum):
            ids = torch.randint(0, 40, (bs, width), generator=g)
            tags = (ids + ids.roll(1, 1)) % 5
            lens = torch.randint(4, width + 1, (bs, 1), generator=g)
            tags = tags.masked_fill(torch.arange(width) >= lens, IGNORE)
            group.append((ids, tags))
        yield group


def count_tokens(group):
    n = torch.tensor(sum(int((t != IGNORE).sum()) for _, t in group))
    dist.all_reduce(n)
    return n.item()


def token_loss(logits, tags, num_items):
    total = F.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=IGNORE, reduction="sum")
    return total / num_items


class Trainer:
    def __init__(self, args):
        self.args = args
        self.world = dist.get_world_size()
        torch.manual_seed(14)
        self.model = DDP(Tagger())
        self.opt = torch.optim.SGD(self.model.parameters(), lr=args.lr, momentum=0.9)

    def update(self, group):
        num_items = count_tokens(group)
        logged = torch.zeros(())
        self.opt.zero_grad()
        for i, (ids, tags) in enumerate(group):
            last = i == len(group) - 1
            with contextlib.nullcontext() if last else self.model.no_sync():
                loss = token_loss(self.model(ids), tags, num_items)
                logged += loss.detach()
                loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip)
        self.opt.step()
        dist.all_reduce(logged)
        return logged.item(), norm.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=30)
    ap.add_argument("--accum", type=int, default=3)
    ap.add_argument("--bs", type=int, default=6)
    ap.add_argument("--lr", type=float, default=0.3)
    ap.add_argument("--clip", type=float, default=5.0)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trainer = Trainer(args)
    for step, group in enumerate(micro_batches(rank, args.steps, args.accum, args.bs)):
        loss, norm = trainer.update(group)
        if rank == 0 and step % 6 == 0:
            print(f"step {step} loss {loss:.4f} norm {norm:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
