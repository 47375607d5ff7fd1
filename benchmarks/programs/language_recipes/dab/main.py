"""Pipeline-parallel pretraining with torch.distributed.pipelining (1F1B).

    torchrun --nproc-per-node 2 dab/main.py
"""
import argparse
import logging
import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from gpt import GPT, GPTConfig

log = logging.getLogger("pp")


@dataclass
class TrainConfig:
    vocab: int = 64
    seq_len: int = 24
    layers: int = 4
    dim: int = 48
    batch: int = 16
    microbatches: int = 4
    steps: int = 40
    lr: float = 4e-3
    warmup: int = 6
    max_norm: float = 0.25
    momentum: float = 0.9
    seed: int = 77
    log_every: int = 5
    out: str = "dab_stage{}.pt"


class StageModule(nn.Module):
    """A slice of the full model; modules of other stages are dropped."""

    def __init__(self, full: GPT, first_layer: int, last_layer: int):
        super().__init__()
        n = len(full.blocks)
        self.wte = full.wte if first_layer == 0 else None
        self.wpe = full.wpe if first_layer == 0 else None
        self.blocks = nn.ModuleDict({str(i): full.blocks[i] for i in range(first_layer, last_layer)})
        self.ln_f = full.ln_f if last_layer == n else None
        self.lm_head = full.lm_head if last_layer == n else None

    def forward(self, x):
        if self.wte is not None:
            x = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
        for blk in self.blocks.values():
            x = blk(x)
        if self.lm_head is not None:
            x = self.lm_head(self.ln_f(x))
        return x


def split_points(n_layers: int, stages: int) -> list[tuple[int, int]]:
    base, extra = divmod(n_layers, stages)
    cuts, at = [], 0
    for s in range(stages):
        size = base + (1 if s < extra else 0)
        cuts.append((at, at + size))
        at += size
    return cuts


class Corpus:
    def __init__(self, vocab, seq_len, seed):
        self.vocab, self.seq_len = vocab, seq_len
        self.gen = torch.Generator().manual_seed(seed)

    def batch(self, n):
        a = torch.randint(0, self.vocab, (n, 1), generator=self.gen)
        d = torch.randint(1, 6, (n, 1), generator=self.gen)
        seq = (a + d * torch.arange(self.seq_len + 1)) % self.vocab
        return seq[:, :-1].contiguous(), seq[:, 1:].contiguous()


def lm_loss(logits, target):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))


class PipelineTrainer:
    def __init__(self, cfg: TrainConfig):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        full = GPT(GPTConfig(vocab_size=cfg.vocab, block_size=cfg.seq_len, n_layer=cfg.layers, n_embd=cfg.dim))
        lo, hi = split_points(cfg.layers, self.world)[self.rank]
        self.module = StageModule(full, lo, hi)
        self.stage = PipelineStage(self.module, self.rank, self.world, torch.device("cpu"))
        self.schedule = Schedule1F1B(self.stage, cfg.microbatches, loss_fn=lm_loss)
        self.opt = torch.optim.SGD(self.module.parameters(), lr=cfg.lr * 100, momentum=cfg.momentum)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, self._lr_factor)
        self.corpus = Corpus(cfg.vocab, cfg.seq_len, cfg.seed)
        self.is_last = self.rank == self.world - 1

    def _lr_factor(self, step: int) -> float:
        c = self.cfg
        if step < c.warmup:
            return (step + 1) / c.warmup
        t = (step - c.warmup) / max(1, c.steps - c.warmup)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, t)))

    def clip(self) -> torch.Tensor:
        return nn.utils.clip_grad_norm_(self.module.parameters(), self.cfg.max_norm)

    def step(self):
        x, y = self.corpus.batch(self.cfg.batch)
        self.opt.zero_grad()
        losses: list[torch.Tensor] = []
        if self.rank == 0:
            self.schedule.step(x)
        else:
            self.schedule.step(target=y, losses=losses) if self.is_last else self.schedule.step()
        norm = self.clip()
        self.opt.step()
        self.sched.step()
        loss = torch.stack([l.detach() for l in losses]).mean() if losses else torch.zeros(())
        return loss, norm

    def fit(self):
        for i in range(self.cfg.steps):
            loss, norm = self.step()
            if i % self.cfg.log_every == 0 or i == self.cfg.steps - 1:
                dist.broadcast(loss, src=self.world - 1)
                if self.rank == 0:
                    log.info("step %3d loss %.4f grad_norm %.3f lr %.3f", i, loss, norm, self.sched.get_last_lr()[0])

    def save(self):
        torch.save(self.module.state_dict(), self.cfg.out.format(self.rank))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=TrainConfig.steps)
    ap.add_argument("--microbatches", type=int, default=TrainConfig.microbatches)
    ap.add_argument("--max-norm", type=float, default=TrainConfig.max_norm)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trainer = PipelineTrainer(TrainConfig(steps=a.steps, microbatches=a.microbatches, max_norm=a.max_norm))
    trainer.fit()
    trainer.save()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
