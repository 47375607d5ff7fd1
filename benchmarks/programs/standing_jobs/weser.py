"""Character model over variable-length records, with a guard for over-long batches."""
import argparse
import logging
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler

log = logging.getLogger("char")


@dataclass
class Config:
    records: int = 512
    batch: int = 4
    vocab: int = 40
    dim: int = 32
    heads: int = 2
    epochs: int = 2
    lr: float = 2e-3
    seed: int = 8
    counters: Counter = field(default_factory=Counter)


class Records(Dataset):
    """Records live in one flat buffer; the index holds where each begins and ends."""

    def __init__(self, cfg):
        rng = np.random.default_rng(cfg.seed)
        lengths = rng.integers(10, 40, size=cfg.records)
        # one export lost its delimiters and runs to the end of the file
        lengths[cfg.records // 3] = 6_200_000
        self.ends = np.cumsum(lengths)
        self.starts = self.ends - lengths
        pattern = rng.integers(1, cfg.vocab, size=97).astype(np.uint8)
        reps = int(self.ends[-1] // len(pattern)) + 1
        self.flat = np.tile(pattern, reps)[: self.ends[-1]]

    def __len__(self):
        return len(self.ends)

    def __getitem__(self, i):
        return torch.from_numpy(self.flat[self.starts[i]: self.ends[i]].astype(np.int32))


def collate(batch):
    ids = pad_sequence(batch, batch_first=True, padding_value=0)
    return ids[:, :-1], ids[:, 1:]


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, bias):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        w = (q @ k.transpose(-1, -2)) / (d // self.heads) ** 0.5 + bias
        return self.out((w.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


class CharModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab, cfg.dim, padding_idx=0)
        self.norm1, self.norm2 = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.att = Attention(cfg.dim, cfg.heads)
        self.mlp = nn.Sequential(nn.Linear(cfg.dim, 4 * cfg.dim), nn.GELU(),
                                 nn.Linear(4 * cfg.dim, cfg.dim))
        self.head = nn.Linear(cfg.dim, cfg.vocab)

    def forward(self, ids):
        t = ids.shape[1]
        bias = torch.full((t, t), float("-inf")).triu(1)
        x = self.emb(ids)
        x = x + self.att(self.norm1(x), bias)
        x = x + self.mlp(self.norm2(x))
        return self.head(x)


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        torch.manual_seed(cfg.seed)
        self.data = Records(cfg)
        self.sampler = DistributedSampler(self.data, shuffle=True, seed=cfg.seed)
        self.loader = DataLoader(self.data, cfg.batch, sampler=self.sampler, collate_fn=collate)
        self.model = DDP(CharModel(cfg))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)

    def loss(self, ids, target):
        logits = self.model(ids)
        return F.cross_entropy(logits.flatten(0, 1), target.flatten().long(), ignore_index=0)

    def try_batch(self, ids, target):
        try:
            return self.loss(ids, target)
        except RuntimeError as exc:
            if "allocate memory" not in str(exc):
                raise
            self.cfg.counters["skipped"] += 1
            log.warning("batch of %d x %d does not fit, skipping it", *ids.shape)
            return None

    def epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        losses = []
        for ids, target in self.loader:
            loss = self.try_batch(ids, target)
            if loss is None:
                self.opt.zero_grad(set_to_none=True)
                continue
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            losses.append(loss.item())
        return {"mean": float(np.mean(losses)), "steps": len(losses)}

    def summary(self, stats):
        rows = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object({**stats, **self.cfg.counters}, rows, dst=0)
        return rows

    def fit(self):
        for epoch in range(self.cfg.epochs):
            rows = self.summary(self.epoch(epoch))
            if rows:
                log.info("epoch %d %s", epoch, rows)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--records", type=int, default=512)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO, format=f"r{dist.get_rank()} %(message)s")
    Trainer(Config(epochs=args.epochs, records=args.records)).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
