import argparse
import logging
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from checkpoint import ShardWriter

log = logging.getLogger("train")


@dataclass
class Config:
    steps: int = 100
    batch: int = 16
    dim: int = 48
    layers: int = 2
    heads: int = 4
    seq: int = 16
    vocab: int = 32
    lr: float = 1e-3
    save_every: int = 20
    seed: int = 21


class Arithmetic(Dataset):
    """Sequences a, a+d, a+2d, ... modulo the vocabulary."""

    def __init__(self, n, cfg):
        g = torch.Generator().manual_seed(cfg.seed)
        start = torch.randint(cfg.vocab, (n, 1), generator=g)
        delta = torch.randint(1, 5, (n, 1), generator=g)
        self.rows = (start + delta * torch.arange(cfg.seq + 1)) % cfg.vocab

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i, :-1], self.rows[i, 1:]


class Decoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.dim)
        self.pos = nn.Parameter(0.02 * torch.randn(cfg.seq, cfg.dim))
        layer = nn.TransformerEncoderLayer(cfg.dim, cfg.heads, 2 * cfg.dim, dropout=0.0,
                                           batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, cfg.layers, enable_nested_tensor=False)
        self.out = nn.Linear(cfg.dim, cfg.vocab)
        mask = torch.full((cfg.seq, cfg.seq), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, ids):
        return self.out(self.blocks(self.tok(ids) + self.pos, mask=self.mask))


def endless(loader, sampler):
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=100)
    ap.add_argument("--save-every", type=int, default=20)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format=f"r{rank} %(name)s %(message)s")
    cfg = Config(steps=args.steps, save_every=args.save_every)
    here = os.path.basename(os.path.dirname(os.path.abspath(__file__)))
    torch.manual_seed(cfg.seed)
    data = Arithmetic(4096, cfg)
    sampler = DistributedSampler(data, seed=cfg.seed, drop_last=True)
    loader = DataLoader(data, batch_size=cfg.batch, sampler=sampler, drop_last=True)
    model = DDP(Decoder(cfg))
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, cfg.lr * 3, total_steps=cfg.steps)
    writer = ShardWriter(args.out or os.path.join("ckpt", here))

    running = 0.0
    for step, (x, y) in enumerate(endless(loader, sampler), 1):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        running += loss.item()
        if step % 10 == 0:
            log.info("step %d loss %.4f", step, running / 10)
            running = 0.0
        if step % cfg.save_every == 0:
            writer.save(model.module, opt, step)
        if step == cfg.steps:
            break
    writer.wait()
    dist.barrier()
    log.info("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
