"""Sequence tagging with gradient accumulation (DDP, communication only on the update step)."""
import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Tagger(nn.Module):
    def __init__(self, vocab, tags, dim=96):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.LSTM(dim, dim, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * dim, tags)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.out(h)


def make_corpus(n, vocab=200, tags=9, length=24, seed=0):
    g = torch.Generator().manual_seed(seed)
    table = torch.randint(0, tags, (vocab,), generator=torch.Generator().manual_seed(42))
    ids = torch.randint(0, vocab, (n, length), generator=g)
    base = table[ids]
    prev = torch.cat([base[:, :1], base[:, :-1]], 1)
    y = (base + 2 * prev) % tags
    flip = torch.rand(y.shape, generator=g) < 0.05
    return ids, torch.where(flip, torch.randint(0, tags, y.shape, generator=g), y)


class AccumulatingTrainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.model = DDP(Tagger(200, 9))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        ds = TensorDataset(*make_corpus(args.num_sentences, seed=1))
        self.sampler = DistributedSampler(ds, shuffle=True, seed=args.seed, drop_last=True)
        self.loader = DataLoader(ds, args.batch_size, sampler=self.sampler, drop_last=True)
        self.updates = 0

    def is_update_step(self, i):
        return (i + 1) % self.args.accum == 0

    def window_size(self, i):
        start = i - i % self.args.accum
        return min(self.args.accum, len(self.loader) - start)

    def apply(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.opt.zero_grad()
        self.updates += 1

    def run_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        total = 0.0
        pending = 0
        for i, (ids, tags) in enumerate(self.loader):
            update = self.is_update_step(i)
            with nullcontext() if update else self.model.no_sync():
                logits = self.model(ids)
                loss = F.cross_entropy(logits.flatten(0, 1), tags.flatten())
                (loss / self.window_size(i)).backward()
            total += loss.item()
            pending += 1
            if update:
                self.apply()
                pending = 0
        if pending:
            self.apply()
        return total / len(self.loader)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--num-sentences", type=int, default=2160)
    ap.add_argument("--batch-size", type=int, default=24)
    ap.add_argument("--accum", type=int, default=4)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=8)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    trainer = AccumulatingTrainer(args)
    for epoch in range(args.epochs):
        loss = torch.tensor(trainer.run_epoch(epoch))
        dist.all_reduce(loss)
        if trainer.rank == 0:
            print(f"epoch {epoch} updates {trainer.updates} loss {loss.item() / trainer.world:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
