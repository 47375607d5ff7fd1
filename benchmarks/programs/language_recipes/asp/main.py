"""Local training with rare synchronisation (DiLoCo-like) of a small GPT.

Workers run ``inner_steps`` of AdamW on their own data without talking to each
other, then meet for an outer step on the averaged displacement.

    torchrun --nproc-per-node 2 asp/main.py
"""
import argparse
import logging
import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F

from model import GPT, GPTConfig
from outer import OuterNesterov

log = logging.getLogger("diloco")


@dataclass
class Config:
    vocab: int = 64
    seq: int = 24
    batch: int = 8
    rounds: int = 6
    inner_steps: int = 8
    inner_lr: float = 3e-3
    outer_lr: float = 0.7
    outer_momentum: float = 0.8
    warmup: int = 5
    clip: float = 1.0
    seed: int = 50
    eval_docs: int = 32


class ShardedCorpus:
    """Document families are split over the workers: worker r owns strides r+1, r+1+world, ..."""

    def __init__(self, cfg: Config, rank: int, world: int):
        self.cfg = cfg
        self.strides = torch.arange(1, 9)[rank::world]
        self.gen = torch.Generator().manual_seed(cfg.seed * 31 + rank)

    def batch(self):
        c = self.cfg
        pick = self.strides[torch.randint(0, len(self.strides), (c.batch, 1), generator=self.gen)]
        start = torch.randint(0, c.vocab, (c.batch, 1), generator=self.gen)
        return (start + pick * torch.arange(c.seq + 1)) % c.vocab


def eval_set(cfg: Config) -> torch.Tensor:
    g = torch.Generator().manual_seed(cfg.seed + 1)
    start = torch.randint(0, cfg.vocab, (cfg.eval_docs, 1), generator=g)
    stride = torch.randint(1, 9, (cfg.eval_docs, 1), generator=g)
    return (start + stride * torch.arange(cfg.seq + 1)) % cfg.vocab


class Worker:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        self.model = GPT(GPTConfig(vocab_size=cfg.vocab, block_size=cfg.seq))
        self.inner = torch.optim.AdamW(self.model.parameters(), lr=cfg.inner_lr, betas=(0.9, 0.95), weight_decay=0.1)
        self.outer = OuterNesterov(self.model.parameters(), cfg.outer_lr, cfg.outer_momentum)
        self.data = ShardedCorpus(cfg, self.rank, self.world)
        self.eval_rows = eval_set(cfg)[self.rank::self.world]
        self.step = 0

    def loss(self, rows):
        logits = self.model(rows[:, :-1])
        return F.cross_entropy(logits.reshape(-1, self.cfg.vocab), rows[:, 1:].reshape(-1))

    def lr(self):
        c, total = self.cfg, self.cfg.rounds * self.cfg.inner_steps
        if self.step < c.warmup:
            return c.inner_lr * (self.step + 1) / c.warmup
        t = (self.step - c.warmup) / (total - c.warmup)
        return c.inner_lr * (0.1 + 0.45 * (1 + math.cos(math.pi * t)))

    def inner_round(self) -> float:
        total = 0.0
        for _ in range(self.cfg.inner_steps):
            for g in self.inner.param_groups:
                g["lr"] = self.lr()
            loss = self.loss(self.data.batch())
            self.inner.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)
            self.inner.step()
            self.step += 1
            total += loss.item()
        return total / self.cfg.inner_steps

    @torch.no_grad()
    def evaluate(self) -> float:
        acc = torch.tensor([self.loss(self.eval_rows).item() * len(self.eval_rows), len(self.eval_rows)])
        dist.all_reduce(acc)
        return (acc[0] / acc[1]).item()

    def fit(self):
        for r in range(self.cfg.rounds):
            local = self.inner_round()
            drift = self.outer.drift()
            self.outer.step()
            info = [None] * self.world
            dist.all_gather_object(info, (round(local, 4), round(drift, 4)))
            val = self.evaluate()
            if self.rank == 0:
                log.info("round %d inner (loss, drift) %s | common val %.4f", r, info, val)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=Config.rounds)
    ap.add_argument("--inner-steps", type=int, default=Config.inner_steps)
    ap.add_argument("--outer-lr", type=float, default=Config.outer_lr)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    w = Worker(Config(rounds=a.rounds, inner_steps=a.inner_steps, outer_lr=a.outer_lr))
    w.fit()
    if w.rank == 0:
        torch.save({"model": w.model.state_dict(), "rounds": w.outer.rounds}, "asp_final.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
