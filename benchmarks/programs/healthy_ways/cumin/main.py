"""Mixture of experts language model, experts spread over the ranks."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from moe import ExpertParallelFFN

VOCAB, LENGTH = 40, 24


def corpus(n, seed):
    """Sequences from a few hidden affine maps over the alphabet."""
    g = torch.Generator().manual_seed(seed)
    mul = torch.randint(1, 6, (n,), generator=g) * 2 + 1
    add = torch.randint(0, 5, (n,), generator=g)
    cur = torch.randint(0, VOCAB, (n,), generator=g)
    cols = [cur]
    for _ in range(LENGTH):
        cur = (cur * mul + add) % VOCAB
        cols.append(cur)
    return TensorDataset(torch.stack(cols, 1))


class Block(nn.Module):
    def __init__(self, dim, per_rank, seed):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.ffn = ExpertParallelFFN(dim, 2 * dim, per_rank, seed)

    def forward(self, x, mask):
        h = self.n1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        y, balance, load = self.ffn(self.n2(x))
        return x + y, balance, load


class MoELM(nn.Module):
    def __init__(self, dim=48, depth=2, per_rank=2, seed=0):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, dim), nn.Parameter(torch.randn(LENGTH, dim) * 0.02)
        self.blocks = nn.ModuleList(Block(dim, per_rank, seed + i) for i in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, VOCAB)
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), float("-inf")).triu(1), persistent=False)

    def forward(self, ids):
        x, aux, loads = self.tok(ids) + self.pos, 0.0, []
        for b in self.blocks:
            x, balance, load = b(x, self.mask)
            aux = aux + balance
            loads.append(load)
        return self.head(self.norm(x)), aux / len(self.blocks), torch.stack(loads)


def split_parameters(model):
    shared = [p for p in model.parameters() if not getattr(p, "expert", False)]
    experts = [p for p in model.parameters() if getattr(p, "expert", False)]
    return shared, experts


def reduce_gradients(shared, experts, world):
    flat = torch.cat([p.grad.flatten() for p in shared])
    dist.all_reduce(flat)
    flat /= world
    offset = 0
    for p in shared:
        p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
        offset += p.numel()
    for p in experts:
        p.grad.div_(world)


def clip(shared, experts, limit):
    local = sum(p.grad.pow(2).sum() for p in experts)
    dist.all_reduce(local)
    total = (local + sum(p.grad.pow(2).sum() for p in shared)).sqrt()
    scale = (limit / (total + 1e-6)).clamp(max=1.0)
    for p in shared + experts:
        p.grad.mul_(scale)
    return total.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--aux", type=float, default=0.02)
    ap.add_argument("--seed", type=int, default=21)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = MoELM(seed=args.seed)
    shared, experts = split_parameters(model)
    for p in shared:
        dist.broadcast(p.data, src=0)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)

    train, held = corpus(2048, 1), corpus(256, 2)
    sampler = DistributedSampler(train, seed=args.seed, drop_last=True)
    loader = DataLoader(train, batch_size=args.batch, sampler=sampler, drop_last=True)
    held_loader = DataLoader(held, batch_size=64, sampler=DistributedSampler(held, shuffle=False))
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.epochs * len(loader))

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for step, (seq,) in enumerate(loader):
            logits, aux, load = model(seq[:, :-1])
            nll = F.cross_entropy(logits.flatten(0, 1), seq[:, 1:].flatten())
            for p in experts:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
            (nll + args.aux * aux).backward()
            reduce_gradients(shared, experts, world)
            norm = clip(shared, experts, 1.0)
            opt.step()
            sched.step()
            opt.zero_grad(set_to_none=True)
            if step % 16 == 0:
                total = load.clone()
                dist.all_reduce(total)
                if rank == 0:
                    print(f"epoch {epoch} step {step} nll {nll.item():.4f} norm {norm:.3f} load {total.tolist()}", flush=True)
        model.eval()
        tally = torch.zeros(2, dtype=torch.float64)
        with torch.no_grad():
            for (seq,) in held_loader:
                logits, _, _ = model(seq[:, :-1])
                tally[0] += F.cross_entropy(logits.flatten(0, 1), seq[:, 1:].flatten(), reduction="sum").item()
                tally[1] += seq[:, 1:].numel()
        dist.all_reduce(tally)
        if rank == 0:
            print(f"epoch {epoch} held-out nll {(tally[0] / tally[1]).item():.4f}", flush=True)

    os.makedirs("runs/cumin", exist_ok=True)
    torch.save(model.state_dict(), f"runs/cumin/shard{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
