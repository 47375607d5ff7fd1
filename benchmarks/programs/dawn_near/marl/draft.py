"""Trains a small draft language model to follow the distribution of a fixed teacher table."""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.q_norm = nn.RMSNorm(dim // heads)
        self.k_norm = nn.RMSNorm(dim // heads)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)
        y = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(dim)
        self.attn = Attention(dim, heads)
        self.post_attention_layernorm = nn.RMSNorm(dim)
        self.up = nn.Linear(dim, 3 * dim, bias=False)
        self.down = nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x):
        x = x + self.attn(self.input_layernorm(x))
        return x + self.down(F.silu(self.up(self.post_attention_layernorm(x))))


class DraftModel(nn.Module):
    def __init__(self, vocab, dim, depth, heads):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(depth))
        self.norm = nn.RMSNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, std=0.02)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


class Teacher:
    """A second-order Markov source with known next-token probabilities."""

    def __init__(self, vocab, seed):
        g = torch.Generator().manual_seed(seed)
        self.table = (2.5 * torch.randn(vocab, vocab, generator=g)).softmax(-1)

    def sample(self, batch, length, g):
        ids = torch.randint(0, len(self.table), (batch, 1), generator=g)
        for _ in range(length - 1):
            nxt = torch.multinomial(self.table[ids[:, -1]], 1, generator=g)
            ids = torch.cat([ids, nxt], 1)
        return ids, self.table[ids]


def lr_at(step, args):
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    done = (step - args.warmup) / max(1, args.steps - args.warmup)
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--lr", type=float, default=6e-4)
    ap.add_argument("--warmup", type=int, default=10)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--length", type=int, default=32)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = DraftModel(vocab=96, dim=96, depth=2, heads=4).to(torch.bfloat16)
    ddp = DDP(model)
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() == 1]
    opt = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}], lr=args.lr, betas=(0.9, 0.95)
    )
    teacher = Teacher(96, seed=2)
    g = torch.Generator().manual_seed(100 + rank)

    for step in range(args.steps):
        for group in opt.param_groups:
            group["lr"] = lr_at(step, args)
        ids, probs = teacher.sample(args.batch, args.length, g)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = ddp(ids)
        loss = -(probs * F.log_softmax(logits.float(), -1)).sum(-1).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} lr {lr_at(step, args):.2e} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
