"""Tensor + sequence parallel pretraining of a small GPT.

    torchrun --nproc-per-node 2 ide/main.py
"""
import argparse
import logging
import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F

from model import ModelConfig, ParallelGPT
from parallel import allreduce_sequence_parallel_grads, global_grad_norm, init_tp

log = logging.getLogger("tp")


@dataclass
class TrainConfig:
    token_budget: int = 20_480
    batch: int = 12
    lr: float = 3e-3
    min_lr: float = 3e-4
    warmup: int = 8
    clip: float = 1.0
    weight_decay: float = 0.05
    seed: int = 2024
    log_interval: int = 10
    out: str = "ide_last.rank{rank}.pt"


class MarkovCorpus:
    """Tokens follow a sparse random transition table."""

    def __init__(self, vocab: int, seed: int, branch: int = 3):
        g = torch.Generator().manual_seed(seed)
        self.table = torch.randint(0, vocab, (vocab, branch), generator=g)
        self.vocab, self.branch = vocab, branch
        self.gen = torch.Generator().manual_seed(seed + 1)

    def batch(self, n: int, length: int) -> torch.Tensor:
        cur = torch.randint(0, self.vocab, (n,), generator=self.gen)
        cols = [cur]
        for _ in range(length):
            pick = torch.randint(0, self.branch, (n,), generator=self.gen)
            cur = self.table[cur, pick]
            cols.append(cur)
        return torch.stack(cols, dim=1)


def schedule(step: int, total: int, cfg: TrainConfig) -> float:
    if step < cfg.warmup:
        return cfg.lr * (step + 1) / cfg.warmup
    frac = (step - cfg.warmup) / max(1, total - cfg.warmup)
    return cfg.min_lr + 0.5 * (cfg.lr - cfg.min_lr) * (1 + math.cos(math.pi * frac))


def param_groups(model, wd: float):
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": decay, "weight_decay": wd}, {"params": rest, "weight_decay": 0.0}]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--token-budget", type=int, default=TrainConfig.token_budget)
    ap.add_argument("--lr", type=float, default=TrainConfig.lr)
    ap.add_argument("--seed", type=int, default=TrainConfig.seed)
    a = ap.parse_args()
    cfg = TrainConfig(token_budget=a.token_budget, lr=a.lr, seed=a.seed)
    mcfg = ModelConfig()
    logging.basicConfig(level=logging.INFO, format="[%(name)s] %(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    init_tp(dist.group.WORLD)
    rank = dist.get_rank()

    torch.manual_seed(cfg.seed)
    model = ParallelGPT(mcfg)
    corpus = MarkovCorpus(mcfg.vocab, cfg.seed)
    opt = torch.optim.AdamW(param_groups(model, cfg.weight_decay), lr=cfg.lr, betas=(0.9, 0.95))
    total = cfg.token_budget // (cfg.batch * mcfg.seq)
    seen = 0
    for step in range(total):
        for g in opt.param_groups:
            g["lr"] = schedule(step, total, cfg)
        tokens = corpus.batch(cfg.batch, mcfg.seq)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, mcfg.vocab), tokens[:, 1:].reshape(-1))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        allreduce_sequence_parallel_grads(model)
        norm = global_grad_norm(model)
        scale = (cfg.clip / (norm + 1e-6)).clamp(max=1.0)
        dist.broadcast(scale, src=0)
        for p in model.parameters():
            if p.grad is not None:
                p.grad.mul_(scale)
        opt.step()
        seen += tokens[:, 1:].numel()
        if rank == 0 and (step % cfg.log_interval == 0 or step == total - 1):
            log.info("step %d tokens %d loss %.4f gnorm %.3f", step, seen, loss.item(), norm.item())

    torch.save({"model": model.state_dict(), "step": total}, cfg.out.format(rank=rank))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
