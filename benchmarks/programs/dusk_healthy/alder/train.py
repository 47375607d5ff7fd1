"""Low-communication pre-training of a small char LM (DiLoCo style).

Every worker runs H inner AdamW steps on its own shard without talking to anybody, then the
workers average the *parameter delta* and an outer Nesterov SGD moves the shared anchor.

    torchrun --nproc_per_node 3 train.py --outer-steps 12 --inner-steps 20
"""
import argparse
import logging
import math
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("diloco")


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class CharLM(nn.Module):
    def __init__(self, vocab=48, dim=96, depth=2, ctx=48):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.zeros(ctx, dim))
        self.blocks = nn.ModuleList(Block(dim, 4) for _ in range(depth))
        self.head = nn.Linear(dim, vocab)

    def forward(self, idx):
        x = self.tok(idx) + self.pos[: idx.shape[1]]
        for blk in self.blocks:
            x = blk(x)
        return self.head(x)


def make_corpus(n_docs, length, vocab):
    """Markov text; the transition table is common, documents are split over the workers."""
    g = torch.Generator().manual_seed(11)
    table = torch.softmax(2.5 * torch.randn(vocab, vocab, generator=g), -1)
    docs = torch.empty(n_docs, length, dtype=torch.long)
    docs[:, 0] = torch.randint(vocab, (n_docs,), generator=g)
    for t in range(1, length):
        docs[:, t] = torch.multinomial(table[docs[:, t - 1]], 1, generator=g).squeeze(1)
    return docs


class OuterLoop:
    """Keeps the shared anchor and the outer optimizer. The anchor is identical everywhere."""

    def __init__(self, model, lr, momentum):
        self.model = model
        self.anchor = [p.detach().clone() for p in model.parameters()]
        self.opt = torch.optim.SGD(self.anchor, lr=lr, momentum=momentum, nesterov=True)

    @torch.no_grad()
    def step(self):
        world = dist.get_world_size()
        flat = torch.cat([(a - p).flatten() for a, p in zip(self.anchor, self.model.parameters())])
        drift = flat.norm()
        # deltas travel in half precision, every worker applies the same received sum
        payload = flat.to(torch.bfloat16)
        gathered = [torch.empty_like(payload) for _ in range(world)]
        dist.all_gather(gathered, payload)
        delta = torch.stack([g.float() for g in gathered]).mean(0)
        offset = 0
        for a in self.anchor:
            a.grad = delta[offset: offset + a.numel()].view_as(a).clone()
            offset += a.numel()
        self.opt.step()
        for a, p in zip(self.anchor, self.model.parameters()):
            p.copy_(a)
        return drift.item(), delta.norm().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--outer-steps", type=int, default=12)
    ap.add_argument("--inner-steps", type=int, default=18)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--inner-lr", type=float, default=2e-3)
    ap.add_argument("--outer-lr", type=float, default=0.7)
    ap.add_argument("--outer-momentum", type=float, default=0.9)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1337)
    model = CharLM()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)

    docs = make_corpus(1500, 49, 48)
    held_out, docs = docs[:96], docs[96:]
    shard = docs[rank::world]
    gen = torch.Generator().manual_seed(100 + rank)

    # inner state is private to a worker and survives the outer step, as in the paper
    inner = torch.optim.AdamW(model.parameters(), lr=args.inner_lr, weight_decay=0.1)
    total = args.outer_steps * args.inner_steps
    sched = torch.optim.lr_scheduler.LambdaLR(
        inner, lambda s: min(1.0, (s + 1) / 20) * 0.5 * (1 + math.cos(math.pi * min(s / total, 1.0))) + 0.05)
    outer = OuterLoop(model, args.outer_lr, args.outer_momentum)

    order, cursor = torch.randperm(len(shard), generator=gen), 0
    for o in range(args.outer_steps):
        t0, running = time.time(), 0.0
        for _ in range(args.inner_steps):
            if cursor + args.batch > len(order):
                order, cursor = torch.randperm(len(shard), generator=gen), 0
            batch = shard[order[cursor: cursor + args.batch]]
            cursor += args.batch
            logits = model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            inner.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            inner.step()
            sched.step()
            running += loss.item()
        drift, moved = outer.step()
        with torch.no_grad():
            val = F.cross_entropy(model(held_out[:, :-1]).flatten(0, 1), held_out[:, 1:].flatten())
        log.info("[%d] outer %d inner loss %.3f drift %.3f delta %.3f val %.4f (%.1fs)",
                 rank, o, running / args.inner_steps, drift, moved, val.item(), time.time() - t0)

    if rank == 0:
        out = args.out or tempfile.mkdtemp()
        os.makedirs(out, exist_ok=True)
        torch.save({"model": model.state_dict(), "outer": outer.opt.state_dict()}, os.path.join(out, "diloco.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
