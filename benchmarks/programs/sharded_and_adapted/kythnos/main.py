"""Supervised fine-tuning of a small chat model: prompts masked, answers of very different length.

Conversations are dealt to processes by topic, gradients are accumulated over several
micro-batches and synchronised by DistributedDataParallel.
"""
import argparse
import contextlib
import dataclasses
import logging
import math
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

IGNORE = -100


@dataclasses.dataclass
class SFTConfig:
    vocab: int = 96
    dim: int = 64
    heads: int = 4
    layers: int = 2
    max_len: int = 48
    micro_batch: int = 8
    accumulate: int = 4
    updates: int = 28
    lr: float = 3e-3
    warmup: int = 4
    clip: float = 1.0
    seed: int = 19
    output: str = "runs/kythnos"


class ChatData:
    """Each conversation: a prompt, then an answer that repeats a pattern given by the prompt."""

    def __init__(self, cfg, size, seed):
        self.cfg = cfg
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for i in range(size):
            topic = i % 2
            prompt_len = int(torch.randint(3, 7, (1,), generator=g))
            prompt = torch.randint(4, cfg.vocab, (prompt_len,), generator=g)
            if topic == 0:
                answer_len = int(torch.randint(2, 6, (1,), generator=g))
            else:
                answer_len = int(torch.randint(20, 38, (1,), generator=g))
            step = 3 if topic == 0 else 11
            answer = (prompt[-1] + step * torch.arange(1, answer_len + 1)) % (cfg.vocab - 4) + 4
            self.rows.append((topic, prompt, answer))

    def collate(self, indices):
        ids = torch.zeros(len(indices), self.cfg.max_len, dtype=torch.long)
        labels = torch.full((len(indices), self.cfg.max_len), IGNORE)
        for r, i in enumerate(indices):
            _, prompt, answer = self.rows[i]
            text = torch.cat([prompt, answer])[:self.cfg.max_len]
            ids[r, :len(text)] = text
            labels[r, len(prompt) - 1:len(text) - 1] = text[len(prompt):]
        return ids, labels

    def schedule(self, rank, world):
        """Yields lists of micro-batches, one list per optimizer update."""
        cfg = self.cfg
        g = torch.Generator().manual_seed(cfg.seed)
        lanes = [[i for i, row in enumerate(self.rows) if row[0] == lane] for lane in range(2)]
        for _ in range(cfg.updates):
            window = []
            for _ in range(cfg.accumulate):
                picks = [[lane[j] for j in torch.randint(0, len(lane), (cfg.micro_batch,), generator=g).tolist()]
                         for lane in lanes]
                window.append([p for k, p in enumerate(picks) if k % world == rank])
            yield [self.collate(sum(part, [])) for part in window]


class Layer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.n1, self.n2 = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim)
        self.out = nn.Linear(cfg.dim, cfg.dim)
        self.mlp = nn.Sequential(nn.Linear(cfg.dim, 2 * cfg.dim), nn.GELU(), nn.Linear(2 * cfg.dim, cfg.dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class ChatModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.dim)
        self.pos = nn.Parameter(0.02 * torch.randn(cfg.max_len, cfg.dim))
        self.layers = nn.Sequential(*[Layer(cfg) for _ in range(cfg.layers)])
        self.norm = nn.LayerNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.vocab, bias=False)

    def forward(self, ids):
        return self.head(self.norm(self.layers(self.tok(ids) + self.pos)))


def token_loss(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum")


class SFTTrainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        self.model = DDP(ChatModel(cfg))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, betas=(0.9, 0.98))
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate)
        self.data = ChatData(cfg, 800, seed=1)
        self.held_out = ChatData(cfg, 120, seed=2)

    def rate(self, step):
        if step < self.cfg.warmup:
            return (step + 1) / self.cfg.warmup
        done = (step - self.cfg.warmup) / max(1, self.cfg.updates - self.cfg.warmup)
        return 0.5 * (1 + math.cos(math.pi * done))

    def normalizer(self, window):
        """Number the summed token losses of this update are divided by."""
        tokens = sum((labels != IGNORE).sum() for _, labels in window)
        return tokens

    def update(self, window):
        divisor = self.normalizer(window)
        total = torch.zeros(())
        self.optimizer.zero_grad(set_to_none=True)
        for i, (ids, labels) in enumerate(window):
            last = i == len(window) - 1
            with contextlib.nullcontext() if last else self.model.no_sync():
                loss = token_loss(self.model(ids), labels)
                (loss / divisor).backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)
        self.optimizer.step()
        self.scheduler.step()
        stats = torch.stack([total, sum((labels != IGNORE).sum() for _, labels in window).float()])
        dist.all_reduce(stats)
        return (stats[0] / stats[1]).item()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        rows = list(range(len(self.held_out.rows)))[self.rank::self.world]
        stats = torch.zeros(2)
        for start in range(0, len(rows), 20):
            ids, labels = self.held_out.collate(rows[start:start + 20])
            stats[0] += token_loss(self.model.module(ids), labels)
            stats[1] += (labels != IGNORE).sum()
        dist.all_reduce(stats)
        self.model.train()
        return (stats[0] / stats[1]).item()

    def fit(self):
        for step, window in enumerate(self.data.schedule(self.rank, self.world)):
            loss = self.update(window)
            if step % 7 == 6:
                logging.info("update %d loss %.4f held-out %.4f lr %.2e", step + 1, loss, self.evaluate(),
                             self.scheduler.get_last_lr()[0])
        if self.rank == 0:
            os.makedirs(self.cfg.output, exist_ok=True)
            torch.save(self.model.module.state_dict(), os.path.join(self.cfg.output, "model.pt"))


def main():
    ap = argparse.ArgumentParser()
    for f in dataclasses.fields(SFTConfig):
        ap.add_argument("--" + f.name.replace("_", "-"), type=type(f.default), default=f.default)
    cfg = SFTConfig(**vars(ap.parse_args()))
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR, format="%(message)s")
    SFTTrainer(cfg).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
