"""Pretraining loop on a packed token file."""
import argparse
import math
import os
import tempfile
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from packed import PackedReader, write_corpus

parser = argparse.ArgumentParser()
parser.add_argument("--vocab", type=int, default=48)
parser.add_argument("--tokens", type=int, default=24000)
parser.add_argument("--context", type=int, default=32)
parser.add_argument("--micro_batch", type=int, default=8)
parser.add_argument("--total_batch", type=int, default=32, help="windows per optimizer step")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--min_lr", type=float, default=3e-4)
parser.add_argument("--warmup", type=int, default=4)
parser.add_argument("--seed", type=int, default=1337)


class MlpMixerLm(nn.Module):
    """Embedding, causal convolution and MLP; enough for Markov text."""

    def __init__(self, vocab, dim=48, kernel=4):
        super().__init__()
        self.kernel = kernel
        self.wte = nn.Embedding(vocab, dim)
        self.conv = nn.Conv1d(dim, dim, kernel)
        self.norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.head = nn.Linear(dim, vocab)

    def forward(self, idx, targets=None):
        h = self.wte(idx)
        c = self.conv(F.pad(h.transpose(1, 2), (self.kernel - 1, 0))).transpose(1, 2)
        h = h + c
        logits = self.head(h + self.mlp(self.norm(h)))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def lr_at(step, total, a):
    if step < a.warmup:
        return a.lr * (step + 1) / a.warmup
    frac = (step - a.warmup) / max(1, total - a.warmup)
    return a.min_lr + 0.5 * (1 + math.cos(math.pi * frac)) * (a.lr - a.min_lr)


@torch.no_grad()
def estimate_loss(model, reader):
    model.eval()
    losses = torch.zeros(2)
    for _ in range(len(reader)):
        x, y = reader.next_batch()
        losses += torch.tensor([model(x, y)[1].item(), 1.0])
    dist.all_reduce(losses)
    model.train()
    return (losses[0] / losses[1]).item()


def main():
    a = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    master = rank == 0
    torch.manual_seed(a.seed)

    box = [tempfile.mkdtemp(prefix="packed_") if master else None]
    dist.broadcast_object_list(box)
    paths = {s: os.path.join(box[0], f"{s}.bin") for s in ("train", "val")}
    if master:
        write_corpus(paths["train"], a.tokens, a.vocab, language=3, seed=1)
        write_corpus(paths["val"], a.tokens // 6, a.vocab, language=3, seed=2)
    dist.barrier()

    train = PackedReader(paths["train"], a.context, a.micro_batch, rank, world, seed=a.seed)
    val = PackedReader(paths["val"], a.context, a.micro_batch, rank, world, shuffle=False)
    assert a.total_batch % (a.micro_batch * world) == 0
    accum = a.total_batch // (a.micro_batch * world)
    total = a.epochs * (len(train) // accum)

    model = DDP(MlpMixerLm(a.vocab))
    decay = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1},
                             {"params": plain, "weight_decay": 0.0}], lr=a.lr, betas=(0.9, 0.95))
    if master:
        print(f"{len(train)} micro batches per epoch and process, {accum} per step, "
              f"{total} steps", flush=True)
    t0 = time.time()
    for step in range(total):
        for group in opt.param_groups:
            group["lr"] = lr_at(step, total, a)
        acc_loss = 0.0
        for micro in range(accum):
            x, y = train.next_batch()
            with model.no_sync() if micro < accum - 1 else nullcontext():
                loss = model(x, y)[1] / accum
                loss.backward()
            acc_loss += loss.item()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        if master and step % 5 == 0:
            print(f"step {step:3d}/{total} loss {acc_loss:.4f} norm {norm:.3f} "
                  f"lr {opt.param_groups[0]['lr']:.2e} {1e3 * (time.time() - t0):.0f} ms",
                  flush=True)
        if (step + 1) % 15 == 0 or step + 1 == total:
            value = estimate_loss(model.module, val)
            if master:
                print(f"step {step:3d} val loss {value:.4f}", flush=True)
                torch.save({"model": model.module.state_dict(), "opt": opt.state_dict(),
                            "reader": train.state_dict(), "args": vars(a)},
                           os.path.join(box[0], "ckpt.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
