"""Interleaved 1F1B pipeline: every rank owns two non-adjacent model chunks.

    torchrun --nproc-per-node 2 loach/main.py
"""
import argparse
import json
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

from gpt import GPT, GPTConfig

log = logging.getLogger("vpp")


@dataclass
class Config:
    vocab: int = 48
    seq: int = 16
    layers: int = 5
    dim: int = 48
    virtual: int = 2
    batch: int = 8
    microbatches: int = 4
    steps: int = 20
    lr: float = 3e-3
    max_norm: float = 1.0
    seed: int = 303
    log_every: int = 4


class Chunk(nn.Module):
    def __init__(self, full: GPT, layer_ids: list[int], embed: bool, head: bool):
        super().__init__()
        self.wte = full.wte if embed else None
        self.wpe = full.wpe if embed else None
        self.blocks = nn.ModuleDict({str(i): full.blocks[i] for i in layer_ids})
        self.ln_f = full.ln_f if head else None
        self.lm_head = full.lm_head if head else None

    def forward(self, x):
        if self.wte is not None:
            x = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for b in self.blocks.values():
            x = b(x)
        return self.lm_head(self.ln_f(x)) if self.lm_head is not None else x


def partition(layers: int, chunks: int) -> list[list[int]]:
    """The first chunk carries the embedding, the last the head: both get fewer blocks."""
    sizes = [layers // chunks] * chunks
    for i in range(layers % chunks):
        sizes[1 + i % max(1, chunks - 2)] += 1
    out, at = [], 0
    for s in sizes:
        out.append(list(range(at, at + s)))
        at += s
    return out


def loss_fn(logits, target):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))


def stream(cfg: Config):
    g = torch.Generator().manual_seed(cfg.seed + 9)
    while True:
        a = torch.randint(0, cfg.vocab, (cfg.batch, 1), generator=g)
        d = torch.randint(1, 6, (cfg.batch, 1), generator=g)
        rows = (a + d * torch.arange(cfg.seq + 1)) % cfg.vocab
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


class Run:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.n_chunks = self.world * cfg.virtual
        torch.manual_seed(cfg.seed)
        full = GPT(GPTConfig(vocab_size=cfg.vocab, block_size=cfg.seq, n_layer=cfg.layers, n_embd=cfg.dim))
        parts = partition(cfg.layers, self.n_chunks)
        self.mine = list(range(self.rank, self.n_chunks, self.world))
        self.chunks = nn.ModuleList(
            Chunk(full, parts[i], i == 0, i == self.n_chunks - 1) for i in self.mine)
        stages = [PipelineStage(m, i, self.n_chunks, torch.device("cpu")) for m, i in zip(self.chunks, self.mine)]
        self.schedule = ScheduleInterleaved1F1B(stages, cfg.microbatches, loss_fn=loss_fn)
        self.opt = torch.optim.AdamW(self.chunks.parameters(), lr=cfg.lr, betas=(0.9, 0.95), weight_decay=0.01)
        self.has_first = 0 in self.mine
        self.has_last = self.n_chunks - 1 in self.mine
        self.last_rank = (self.n_chunks - 1) % self.world
        self.data = stream(cfg)

    def clip(self) -> float:
        params = [p for p in self.chunks.parameters() if p.grad is not None]
        sq = nn.utils.get_total_norm([p.grad for p in params]) ** 2
        dist.all_reduce(sq)
        total = sq.sqrt()
        nn.utils.clip_grads_with_norm_(params, self.cfg.max_norm, total)
        return total.item()

    def step(self):
        x, y = next(self.data)
        losses: list[torch.Tensor] = []
        args = (x,) if self.has_first else ()
        kwargs = {"target": y, "losses": losses} if self.has_last else {}
        self.opt.zero_grad()
        self.schedule.step(*args, **kwargs)
        norm = self.clip()
        self.opt.step()
        loss = torch.stack([l.detach() for l in losses]).mean() if self.has_last else torch.zeros(())
        return loss, norm

    def fit(self):
        for i in range(self.cfg.steps):
            loss, norm = self.step()
            if i % self.cfg.log_every == 0 or i == self.cfg.steps - 1:
                dist.broadcast(loss, src=self.last_rank)
                if self.rank == 0:
                    log.info("step %2d loss %.4f gnorm %.4f", i, loss, norm)

    def export(self, path: str):
        """Chunks are collected on the first rank into one plain state dict."""
        parts = [None] * self.world if self.rank == 0 else None
        mine = {k: v for m in self.chunks for k, v in m.state_dict().items()}
        dist.gather_object(mine, parts, dst=0)
        if self.rank == 0:
            merged = {k: v for p in parts for k, v in p.items()}
            torch.save(merged, path)
            log.info(json.dumps({"tensors": len(merged), "chunks": self.n_chunks}))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=Config.steps)
    ap.add_argument("--chunks-per-rank", type=int, default=Config.virtual)
    ap.add_argument("--save", default="loach_full.pt")
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    run = Run(Config(steps=a.steps, virtual=a.chunks_per_rank))
    run.fit()
    run.export(a.save)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
