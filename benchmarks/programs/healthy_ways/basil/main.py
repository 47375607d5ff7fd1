"""A small causal transformer split by tensors: every rank reads every batch."""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from tp import ParallelAttention, ParallelMLP


class Brackets(Dataset):
    """Random balanced bracket strings over three kinds of brackets."""

    OPEN, PAD = 3, 6

    def __init__(self, n, length, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = torch.full((n, length + 1), self.PAD)
        rolls = torch.rand(n, length + 1, generator=g)
        kinds = torch.randint(0, 3, (n, length + 1), generator=g)
        for i in range(n):
            stack = []
            for j in range(length + 1):
                if stack and (len(stack) >= length + 1 - j or rolls[i, j] < 0.5):
                    self.rows[i, j] = stack.pop() + self.OPEN
                else:
                    k = int(kinds[i, j])
                    stack.append(k)
                    self.rows[i, j] = k

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i, :-1], self.rows[i, 1:]


class Block(nn.Module):
    def __init__(self, dim, heads, group, gen):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = ParallelAttention(dim, heads, group, gen)
        self.mlp = ParallelMLP(dim, 4 * dim, group, gen)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class Decoder(nn.Module):
    def __init__(self, vocab, length, dim, heads, depth, group, gen):
        super().__init__()
        self.tok = nn.Parameter(torch.randn(vocab, dim, generator=gen) * 0.05)
        self.pos = nn.Parameter(torch.randn(length, dim, generator=gen) * 0.02)
        self.blocks = nn.ModuleList(Block(dim, heads, group, gen) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)

    def forward(self, ids):
        x = F.embedding(ids, self.tok) + self.pos[: ids.shape[1]]
        for b in self.blocks:
            x = b(x)
        return self.norm(x) @ self.tok.t()


def global_norm(params, group):
    sharded = sum(p.grad.pow(2).sum() for p in params if getattr(p, "sharded", False))
    dist.all_reduce(sharded, group=group)
    whole = sum(p.grad.pow(2).sum() for p in params if not getattr(p, "sharded", False))
    return (sharded + whole).sqrt()


def replicated_drift(model, group):
    gap = torch.zeros(1)
    for p in model.parameters():
        if not getattr(p, "sharded", False):
            low, high = p.detach().clone(), p.detach().clone()
            dist.all_reduce(low, op=dist.ReduceOp.MIN, group=group)
            dist.all_reduce(high, op=dist.ReduceOp.MAX, group=group)
            gap = torch.maximum(gap, (high - low).max())
    return gap.item()


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    right = total = 0
    for ids, target in loader:
        pred = model(ids).argmax(-1)
        closers = target >= Brackets.OPEN
        right += (pred == target)[closers].sum().item()
        total += closers.sum().item()
    model.train()
    return right / total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=90)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, group = dist.get_rank(), dist.group.WORLD

    train, held = Brackets(90 * 24, 24, seed=100), Brackets(240, 24, seed=101)
    order = torch.Generator().manual_seed(args.seed)
    loader = DataLoader(train, batch_size=args.batch, shuffle=True, generator=order)
    held_loader = DataLoader(held, batch_size=60)

    gen = torch.Generator().manual_seed(args.seed)
    model = Decoder(7, 24, args.dim, args.heads, 2, group, gen)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.98))
    warm = 10
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min((s + 1) / warm, max(0.05, 1 - (s - warm) / max(1, args.steps - warm))))
    params = list(model.parameters())

    step, t0 = 0, time.perf_counter()
    while step < args.steps:
        for ids, target in loader:
            loss = F.cross_entropy(model(ids).flatten(0, 1), target.flatten())
            opt.zero_grad(set_to_none=True)
            loss.backward()
            norm = global_norm(params, group)
            scale = (1.0 / (norm + 1e-6)).clamp(max=1.0)
            for p in params:
                p.grad.mul_(scale)
            opt.step()
            sched.step()
            if rank == 0 and step % 15 == 0:
                print(f"step {step:3d} loss {loss.item():.4f} norm {norm.item():.3f} "
                      f"{(step + 1) * ids.numel() / (time.perf_counter() - t0):.0f} tok/s", flush=True)
            step += 1
            if step == args.steps:
                break
    acc = evaluate(model, held_loader)
    gap = replicated_drift(model, group)
    os.makedirs("runs/basil", exist_ok=True)
    torch.save(model.state_dict(), f"runs/basil/tp{rank}.pt")
    if rank == 0:
        with open("runs/basil/result.json", "w") as f:
            json.dump({"closer_accuracy": acc, "replicated_gap": gap}, f)
        print(f"closers right {acc:.3f} largest gap in replicated weights {gap:.1e}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
