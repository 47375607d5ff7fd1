"""Sequence tagger with batches made by a token budget over length-sorted pools."""
import argparse
import logging
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

log = logging.getLogger("tagger")


@dataclass
class Config:
    n: int = 1200
    vocab: int = 30
    tags: int = 5
    dim: int = 24
    max_tokens: int = 360
    pool: int = 100
    epochs: int = 3
    lr: float = 5e-3
    seed: int = 231


class Sentences(Dataset):
    def __init__(self, cfg):
        rng = np.random.default_rng(cfg.seed)
        self.lengths = np.clip(rng.lognormal(2.4, 0.7, size=cfg.n).astype(int), 3, 60)
        self.ids = [torch.from_numpy(rng.integers(1, cfg.vocab, size=k)) for k in self.lengths]
        self.tags = [(i + torch.roll(i, 1)) % cfg.tags for i in self.ids]

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i], self.tags[i]


class TokenBatches(Sampler):
    """Shuffles, cuts into pools, sorts a pool by length and fills batches up to the budget."""

    def __init__(self, lengths, cfg, rank, world):
        self.lengths, self.cfg = lengths, cfg
        self.rank, self.world = rank, world
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _fill(self, indices):
        batches = []
        for at in range(0, len(indices), self.cfg.pool):
            pool = sorted(indices[at: at + self.cfg.pool], key=lambda i: (self.lengths[i], i))
            batch, longest = [], 0
            for i in pool:
                longest = max(longest, int(self.lengths[i]))
                if batch and longest * (len(batch) + 1) > self.cfg.max_tokens:
                    batches.append(batch)
                    batch, longest = [], int(self.lengths[i])
                batch.append(i)
            batches.append(batch)
        return batches

    def batches(self):
        rng = np.random.default_rng((self.cfg.seed, self.epoch))
        order = rng.permutation(len(self.lengths)).tolist()
        everything = self._fill(order)
        rng.shuffle(everything)
        missing = -len(everything) % self.world
        everything += everything[:missing]
        return everything[self.rank:: self.world]

    def __iter__(self):
        return iter(self.batches())


def collate(rows):
    ids = pad_sequence([r[0] for r in rows], batch_first=True)
    tags = pad_sequence([r[1] for r in rows], batch_first=True, padding_value=-100)
    return ids, tags


class Tagger(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab, cfg.dim, padding_idx=0)
        self.conv = nn.Conv1d(cfg.dim, 48, 3, padding=1)
        self.out = nn.Linear(48, cfg.tags)

    def forward(self, ids):
        h = self.conv(self.emb(ids).transpose(1, 2)).transpose(1, 2)
        return self.out(F.gelu(h))


class Callback:
    def on_epoch_end(self, trainer, epoch, stats):
        pass


class Progress(Callback):
    def on_epoch_end(self, trainer, epoch, stats):
        rows = [None] * trainer.world
        dist.all_gather_object(rows, stats)
        if trainer.rank == 0:
            tokens = sum(r["tokens"] for r in rows)
            log.info("epoch %d loss %.4f over %d tokens", epoch,
                     sum(r["loss"] for r in rows) / tokens, tokens)


class Trainer:
    def __init__(self, cfg, callbacks):
        self.cfg, self.callbacks = cfg, callbacks
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        data = Sentences(cfg)
        self.model = Tagger(cfg)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.sampler = TokenBatches(data.lengths, cfg, self.rank, self.world)
        self.loader = DataLoader(data, batch_sampler=self.sampler, collate_fn=collate)

    def sync(self, weight):
        """Averages over tokens: gradients are sums, the last entry counts the tokens."""
        params = list(self.model.parameters())
        flat = torch.cat([p.grad.flatten() for p in params] + [torch.tensor([float(weight)])])
        dist.all_reduce(flat)
        flat = flat / flat[-1]
        at = 0
        for p in params:
            p.grad.copy_(flat[at: at + p.numel()].view_as(p))
            at += p.numel()

    def training_step(self, ids, tags):
        logits = self.model(ids)
        loss = F.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=-100,
                               reduction="sum")
        n = int((tags != -100).sum())
        self.opt.zero_grad()
        loss.backward()
        self.sync(n)
        self.opt.step()
        return loss.item(), n

    def fit(self):
        for epoch in range(self.cfg.epochs):
            self.sampler.set_epoch(epoch)
            stats = {"loss": 0.0, "tokens": 0}
            for ids, tags in self.loader:
                loss, n = self.training_step(ids, tags)
                stats["loss"] += loss
                stats["tokens"] += n
            for cb in self.callbacks:
                cb.on_epoch_end(self, epoch, stats)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--max-tokens", type=int, default=360)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    Trainer(Config(epochs=args.epochs, max_tokens=args.max_tokens), [Progress()]).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
