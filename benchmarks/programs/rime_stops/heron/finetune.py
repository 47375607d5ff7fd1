#!/usr/bin/env python
"""Supervised fine-tuning of a small causal LM on dialogues."""
import argparse
import math
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from corpus import IGNORE, BlockSampler, DialogueCorpus, collate


class TinyLM(nn.Module):
    def __init__(self, vocab=512, dim=128, layers=2, heads=4, max_len=64):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.zeros(max_len, dim))
        layer = nn.TransformerEncoderLayer(dim, heads, dim * 4, dropout=0.0,
                                           batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(dim, vocab, bias=False)

    def forward(self, toks):
        n = toks.size(1)
        mask = torch.full((n, n), float("-inf")).triu(1)
        h = self.tok(toks) + self.pos[:n]
        return self.out(self.blocks(h, mask=mask))


def lm_loss(logits, labels):
    total = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(),
                            ignore_index=IGNORE, reduction="sum")
    return total / (labels[:, 1:] != IGNORE).sum().clamp(min=1)


def lr_at(step, total, peak, warmup=10):
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def run(args):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    data = DialogueCorpus(args.dialogues)
    sampler = BlockSampler(len(data), args.batch_size, world, rank, args.seed)
    loader = DataLoader(data, args.batch_size, sampler=sampler, collate_fn=collate, drop_last=True)
    model = DistributedDataParallel(TinyLM())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    total = args.epochs * len(loader)
    step, t0 = 0, time.time()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        seen = torch.zeros(2)
        for batch in loader:
            for group in opt.param_groups:
                group["lr"] = lr_at(step, total, args.lr)
            step += 1
            toks, labels = batch
            loss = lm_loss(model(toks), labels)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            seen += torch.tensor([loss.item() * len(toks), len(toks)])
        gathered = [torch.zeros(2) for _ in range(world)] if rank == 0 else None
        dist.gather(seen, gathered, dst=0)
        if rank == 0:
            tot = torch.stack(gathered).sum(0)
            print(f"epoch {epoch} step {step}/{total} loss {tot[0] / tot[1]:.4f} "
                  f"{time.time() - t0:.1f}s", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), args.output)
    dist.barrier()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dialogues", type=int, default=640)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--output", default="sft.pt")
    args = p.parse_args()
    dist.init_process_group("gloo")
    try:
        run(args)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
