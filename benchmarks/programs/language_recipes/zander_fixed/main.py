"""Distil a frozen teacher LM into a smaller student, token-normalised.

    torchrun --nproc-per-node 3 zander/main.py
"""
import argparse
import contextlib
import itertools
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from data import VOCAB, InstructionSet, collate
from losses import ce_sum, count_targets, kd_sum
from model import GPT, GPTConfig

log = logging.getLogger("distill")


@dataclass
class Config:
    size: int = 288
    max_len: int = 32
    micro_batch: int = 4
    accum: int = 3
    epochs: int = 3
    teacher_steps: int = 25
    lr: float = 0.4
    momentum: float = 0.9
    temperature: float = 2.0
    alpha: float = 0.5
    seed: int = 8
    save: str = "zander_student.pt"


def pretrained_teacher(cfg: Config) -> torch.nn.Module:
    """Stands for a downloaded teacher: the same weights on every rank."""
    torch.manual_seed(cfg.seed)
    net = GPT(GPTConfig(vocab_size=VOCAB, block_size=cfg.max_len, n_layer=2, n_embd=64))
    ds = InstructionSet(cfg.teacher_steps * 8, cfg.max_len, cfg.seed + 1)
    opt = torch.optim.AdamW(net.parameters(), lr=4e-3)
    for s in range(cfg.teacher_steps):
        ids, labels = collate([ds[i] for i in range(s * 8, s * 8 + 8)])
        loss = ce_sum(net(ids), labels) / count_targets(labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return net.eval().requires_grad_(False)


def windows(loader, n):
    it = iter(loader)
    while chunk := list(itertools.islice(it, n)):
        yield chunk


class Distiller:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.teacher = pretrained_teacher(cfg)
        torch.manual_seed(cfg.seed + 2)
        self.student = DDP(GPT(GPTConfig(vocab_size=VOCAB, block_size=cfg.max_len, n_layer=1, n_embd=32)))
        self.opt = torch.optim.SGD(self.student.parameters(), lr=cfg.lr, momentum=cfg.momentum, nesterov=True)
        ds = InstructionSet(cfg.size, cfg.max_len, cfg.seed + 3)
        self.sampler = DistributedSampler(ds, self.world, self.rank, shuffle=True, seed=cfg.seed, drop_last=True)
        self.loader = DataLoader(ds, cfg.micro_batch, sampler=self.sampler, collate_fn=collate, drop_last=True)
        total = cfg.epochs * (len(self.loader) // cfg.accum)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, total, eta_min=cfg.lr * 0.1)
        self.step = 0

    def objective(self, ids, labels):
        with torch.no_grad():
            t = self.teacher(ids)
        s = self.student(ids)
        return self.cfg.alpha * kd_sum(s, t, labels, self.cfg.temperature) + (1 - self.cfg.alpha) * ce_sum(s, labels)

    def window_step(self, window):
        num_items = sum(count_targets(labels) for _, labels in window)
        dist.all_reduce(num_items)
        self.opt.zero_grad(set_to_none=True)
        total = torch.zeros(())
        for i, (ids, labels) in enumerate(window):
            last = i == len(window) - 1
            with contextlib.nullcontext() if last else self.student.no_sync():
                loss = self.objective(ids, labels) * self.world / num_items
                loss.backward()
            total += loss.detach() / self.world
        self.opt.step()
        self.sched.step()
        self.step += 1
        dist.all_reduce(total)
        return total.item(), int(num_items)

    def fit(self):
        for epoch in range(self.cfg.epochs):
            self.sampler.set_epoch(epoch)
            for window in windows(self.loader, self.cfg.accum):
                loss, n = self.window_step(window)
                if self.rank == 0 and self.step % 4 == 0:
                    log.info("epoch %d step %d loss %.4f targets %d lr %.3f", epoch, self.step, loss, n,
                             self.sched.get_last_lr()[0])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=Config.epochs)
    ap.add_argument("--lr", type=float, default=Config.lr)
    ap.add_argument("--alpha", type=float, default=Config.alpha)
    a = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    d = Distiller(Config(epochs=a.epochs, lr=a.lr, alpha=a.alpha))
    d.fit()
    if d.rank == 0:
        torch.save(d.student.module.state_dict(), d.cfg.save)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
