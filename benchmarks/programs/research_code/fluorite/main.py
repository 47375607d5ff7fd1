"""Adapter tuning of a frozen sequence encoder on a small classification task."""
import argparse
import json
import logging
import math
import os
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from lora import adapter_state, inject_lora, merge_lora
from tasks import KeywordTask

logger = logging.getLogger("tune")


@dataclass
class TuneConfig:
    rank: int = 4
    alpha: float = 8.0
    targets: tuple = ("q", "v", "fc1")
    lr: float = 5e-3
    head_lr: float = 5e-3
    weight_decay: float = 0.01
    warmup: float = 0.1
    epochs: int = 3
    batch: int = 16
    accum: int = 2
    grad_clip: float = 1.0
    seed: int = 4
    out: str = "adapter_out"


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        h = self.n1(x)
        split = lambda z: z.view(b, t, self.heads, -1).transpose(1, 2)
        a = F.scaled_dot_product_attention(split(self.q(h)), split(self.k(h)), split(self.v(h)))
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        return x + self.fc2(F.gelu(self.fc1(self.n2(x))))


class Encoder(nn.Module):
    def __init__(self, vocab, classes, d=48, depth=2, heads=4, max_len=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(torch.randn(max_len, d) * 0.02)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, classes)

    def forward(self, x):
        h = self.emb(x) + self.pos[:x.shape[1]]
        for b in self.blocks:
            h = b(h)
        return self.head(self.norm(h).mean(1))


def pretrained(vocab, classes):
    """Stands for a published checkpoint."""
    state = torch.get_rng_state()
    torch.manual_seed(20240)
    m = Encoder(vocab, classes)
    torch.set_rng_state(state)
    return m


class Tuner:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        self.train_set, self.dev = KeywordTask(384, seed=1), KeywordTask(192, seed=2)
        self.sampler = DistributedSampler(self.train_set, seed=cfg.seed, drop_last=True)
        self.loader = DataLoader(self.train_set, cfg.batch, sampler=self.sampler, drop_last=True)
        self.updates = cfg.epochs * math.ceil(len(self.loader) / cfg.accum)
        self.model = pretrained(KeywordTask.vocab, KeywordTask.classes)
        self.configure_optimizer()
        self.configure_model()

    def configure_model(self):
        for n, p in self.model.named_parameters():
            p.requires_grad_(n.startswith("head"))
        replaced = inject_lora(self.model, self.cfg.targets, self.cfg.rank, self.cfg.alpha)
        train = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        total = sum(p.numel() for p in self.model.parameters())
        logger.info("adapted %d layers, trainable %d of %d (%.2f%%)", len(replaced), train, total, 100 * train / total)
        self.ddp = DDP(self.model)

    def configure_optimizer(self):
        head = [p for n, p in self.model.named_parameters() if n.startswith("head")]
        rest = [p for n, p in self.model.named_parameters() if not n.startswith("head") and p.requires_grad]
        self.opt = torch.optim.AdamW([{"params": rest, "lr": self.cfg.lr}, {"params": head, "lr": self.cfg.head_lr}],
                                     weight_decay=self.cfg.weight_decay)
        warm = max(1, int(self.cfg.warmup * self.updates))
        self.sched = torch.optim.lr_scheduler.LambdaLR(
            self.opt, lambda s: (s + 1) / warm if s < warm else max(0.05, (self.updates - s) / (self.updates - warm)))

    def train_epoch(self, epoch):
        self.ddp.train()
        self.sampler.set_epoch(epoch)
        total, n, last = 0.0, 0, len(self.loader) - 1
        self.opt.zero_grad(set_to_none=True)
        for i, (x, y) in enumerate(self.loader):
            boundary = (i + 1) % self.cfg.accum == 0 or i == last
            start = i - i % self.cfg.accum
            window = min(self.cfg.accum, len(self.loader) - start)
            self.ddp.require_backward_grad_sync = boundary
            loss = F.cross_entropy(self.ddp(x), y)
            (loss / window).backward()
            total, n = total + loss.item(), n + 1
            if boundary:
                nn.utils.clip_grad_norm_([p for p in self.ddp.parameters() if p.requires_grad], self.cfg.grad_clip)
                self.opt.step()
                self.sched.step()
                self.opt.zero_grad(set_to_none=True)
        t = torch.tensor([total, n])
        dist.all_reduce(t)
        return (t[0] / t[1]).item()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        x, y = self.dev.x[self.rank::self.world], self.dev.y[self.rank::self.world]
        t = torch.tensor([(self.model(x).argmax(1) == y).sum().item(), len(y)], dtype=torch.float64)
        dist.all_reduce(t)
        return (t[0] / t[1]).item()

    def fit(self):
        for epoch in range(self.cfg.epochs):
            loss = self.train_epoch(epoch)
            logger.info("epoch %d loss %.4f dev acc %.3f", epoch, loss, self.evaluate())
        if self.rank == 0:
            os.makedirs(self.cfg.out, exist_ok=True)
            torch.save(adapter_state(self.model), os.path.join(self.cfg.out, "adapter.pt"))
            with open(os.path.join(self.cfg.out, "adapter.json"), "w") as f:
                json.dump({"r": self.cfg.rank, "alpha": self.cfg.alpha, "targets": self.cfg.targets}, f)
        merge_lora(self.model)
        dist.barrier()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rank", type=int, default=4)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--lr", type=float, default=5e-3)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR, format="%(message)s")
    Tuner(TuneConfig(rank=a.rank, epochs=a.epochs, lr=a.lr)).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
