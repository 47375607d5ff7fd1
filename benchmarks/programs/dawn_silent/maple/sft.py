"""Supervised fine-tuning of a small decoder on prompt/answer pairs."""
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

IGNORE = -100


@dataclass
class Config:
    vocab: int = 32
    dim: int = 64
    prompt: int = 6
    max_answer: int = 24
    micro_batch: int = 16
    accum: int = 2
    steps: int = 150
    lr: float = 2e-3
    seed: int = 17


class Decoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.dim)
        self.pos = nn.Embedding(cfg.prompt + cfg.max_answer, cfg.dim)
        layer = nn.TransformerEncoderLayer(cfg.dim, 4, 2 * cfg.dim, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(cfg.dim, cfg.vocab)

    def forward(self, idx):
        s = idx.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(s)
        h = self.tok(idx) + self.pos(torch.arange(s))
        return self.head(self.body(h, mask=mask, is_causal=True))


class PairData:
    """Short answers count up from the prompt, long ones count down; lengths have a heavy tail."""

    def __init__(self, cfg, n=6000):
        g = torch.Generator().manual_seed(cfg.seed)
        self.cfg = cfg
        self.start = torch.randint(0, cfg.vocab, (n,), generator=g)
        long = torch.rand(n, generator=g) < 0.35
        self.length = torch.where(long, torch.randint(16, cfg.max_answer + 1, (n,), generator=g),
                                  torch.randint(1, 5, (n,), generator=g))
        self.noise = torch.randint(0, cfg.vocab, (n, cfg.prompt), generator=g)

    def collate(self, rows):
        cfg, n = self.cfg, len(rows)
        ids = torch.zeros(n, cfg.prompt + cfg.max_answer, dtype=torch.long)
        labels = torch.full_like(ids, IGNORE)
        for i, r in enumerate(rows.tolist()):
            k, s = int(self.length[r]), int(self.start[r])
            sign = -3 if k > 8 else 1
            ids[i, : cfg.prompt] = self.noise[r]
            ids[i, cfg.prompt - 1] = s
            ans = (s + sign * torch.arange(1, k + 1)) % cfg.vocab
            ids[i, cfg.prompt: cfg.prompt + k] = ans
            labels[i, cfg.prompt: cfg.prompt + k] = ans
        return ids, labels

    def batches(self, rank, world):
        """Group rows of like length so that little padding is computed, then deal them out."""
        cfg, epoch = self.cfg, 0
        mega = cfg.micro_batch * world
        while True:
            order = torch.randperm(len(self.start), generator=torch.Generator().manual_seed(epoch))
            for chunk in order.split(mega):
                if len(chunk) < mega:
                    continue
                chunk = chunk[self.length[chunk].argsort(descending=True)]
                yield self.collate(chunk[rank * cfg.micro_batch:(rank + 1) * cfg.micro_batch])
            epoch += 1


class Trainer:
    def __init__(self, cfg):
        self.cfg, self.rank, self.world = cfg, dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        self.model = DDP(Decoder(cfg))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.stream = PairData(cfg).batches(self.rank, self.world)

    def train_step(self):
        window = [next(self.stream) for _ in range(self.cfg.accum)]
        num_tokens = sum((labels[:, 1:] != IGNORE).sum() for _, labels in window)
        dist.all_reduce(num_tokens)
        self.opt.zero_grad()
        total = 0.0
        for i, (ids, labels) in enumerate(window):
            sync = nullcontext() if i == len(window) - 1 else self.model.no_sync()
            with sync:
                logits = self.model(ids[:, :-1])
                loss = F.cross_entropy(logits.transpose(1, 2), labels[:, 1:], ignore_index=IGNORE, reduction="sum")
                loss = loss * self.world / num_tokens
                loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        return total

    def fit(self):
        for step in range(self.cfg.steps):
            loss = torch.tensor(self.train_step())
            dist.all_reduce(loss)
            loss /= self.world
            if step % 25 == 0 and self.rank == 0:
                print(f"step {step:4d} | loss {loss:.4f}", flush=True)
        if self.rank == 0:
            print(f"last loss {loss:.4f}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    trainer = Trainer(Config())
    trainer.fit()
    dist.destroy_process_group()
