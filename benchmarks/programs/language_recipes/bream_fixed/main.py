"""Sharded fine-tuning with in-loop generation metrics.

    torchrun --nproc-per-node 2 bream/main.py
"""
import argparse
import json
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from model import GPT, GPTConfig
from task import EOS, PAD, VOCAB, Countdown, exact_match, prompt_batch

log = logging.getLogger("sft")


@dataclass
class Config:
    epochs: int = 3
    train_size: int = 512
    batch_size: int = 16
    eval_batch: int = 4
    eval_prompts: int = 8
    max_new_tokens: int = 14
    lr: float = 1e-2
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 1234
    out: str = "bream_out"


class Evaluator:
    """Greedy decoding on held-out prompts, each rank takes its slice."""

    def __init__(self, model, cfg: Config, rank: int, world: int):
        self.model, self.cfg = model, cfg
        g = torch.Generator().manual_seed(cfg.seed + 99)
        prompts = torch.randint(1, 13, (cfg.eval_prompts,), generator=g).sort().values.tolist()
        per = len(prompts) // world
        self.prompts = prompts[rank * per:(rank + 1) * per]

    @torch.no_grad()
    def greedy(self, ns: list[int]) -> torch.Tensor:
        seq = prompt_batch(ns)
        finished = torch.zeros(len(ns), dtype=torch.bool)
        for _ in range(self.cfg.max_new_tokens):
            nxt = self.model(seq)[:, -1].argmax(-1)
            nxt = torch.where(finished, torch.full_like(nxt, PAD), nxt)
            seq = torch.cat([seq, nxt[:, None]], dim=1)
            finished |= nxt == EOS
            pending = (~finished).sum()
            dist.all_reduce(pending)
            if pending.item() == 0:
                break
        return seq[:, 2:]

    def run(self) -> dict:
        self.model.eval()
        hits, lengths = 0, []
        for lo in range(0, len(self.prompts), self.cfg.eval_batch):
            ns = self.prompts[lo:lo + self.cfg.eval_batch]
            out = self.greedy(ns)
            for row, n in zip(out, ns):
                hits += exact_match(row, n)
                lengths.append(int((row != PAD).sum()))
        self.model.train()
        stats = torch.tensor([hits, len(self.prompts), sum(lengths)], dtype=torch.float64)
        dist.all_reduce(stats)
        h, n, l = stats.tolist()
        return {"exact": h / n, "mean_len": l / n}


def build(cfg: Config, mesh):
    torch.manual_seed(cfg.seed)
    model = GPT(GPTConfig(vocab_size=VOCAB, block_size=20))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def main():
    ap = argparse.ArgumentParser()
    for k, v in asdict(Config()).items():
        ap.add_argument("--" + k.replace("_", "-"), type=type(v), default=v)
    cfg = Config(**vars(ap.parse_args()))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    model = build(cfg, mesh)

    ds = Countdown(cfg.train_size, cfg.seed)
    sampler = DistributedSampler(ds, world, rank, shuffle=True, seed=cfg.seed, drop_last=True)
    loader = DataLoader(ds, cfg.batch_size, sampler=sampler, drop_last=True)
    total = cfg.epochs * len(loader)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=cfg.lr, total_steps=total)
    evaluator = Evaluator(model, cfg, rank, world)
    history = []

    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        t0, running = time.perf_counter(), torch.zeros(2)
        for batch in loader:
            logits = model(batch[:, :-1])
            target = batch[:, 1:].clone()
            target[target == PAD] = -100
            loss = F.cross_entropy(logits.reshape(-1, VOCAB), target.reshape(-1), ignore_index=-100)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
            opt.step()
            sched.step()
            running += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(running)
        metrics = evaluator.run()
        history.append({"epoch": epoch, "loss": (running[0] / running[1]).item(), **metrics})
        if rank == 0:
            log.info("epoch %d %s (%.1fs)", epoch, history[-1], time.perf_counter() - t0)

    if rank == 0:
        out = Path(cfg.out)
        out.mkdir(exist_ok=True)
        (out / "history.json").write_text(json.dumps(history, indent=1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
