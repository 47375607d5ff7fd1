import argparse
import contextlib
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from muon import Muon


def args_():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=40)
    p.add_argument("--context", type=int, default=24)
    p.add_argument("--dim", type=int, default=48)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--accum", type=int, default=2)
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--muon-lr", type=float, default=0.02)
    p.add_argument("--adam-lr", type=float, default=3e-3)
    p.add_argument("--tokens", type=int, default=60000)
    p.add_argument("--seed", type=int, default=1)
    return p.parse_args()


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.up = nn.Linear(dim, 3 * dim, bias=False)
        self.down = nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.down(F.relu(self.up(self.n2(x))).square())


class TinyLM(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.tok = nn.Embedding(a.vocab, a.dim)
        self.pos = nn.Parameter(0.02 * torch.randn(a.context, a.dim))
        self.layers = nn.ModuleList(Layer(a.dim, a.heads) for _ in range(a.layers))
        self.norm = nn.LayerNorm(a.dim)
        self.lm = nn.Linear(a.dim, a.vocab, bias=False)

    def forward(self, idx, target):
        x = self.tok(idx) + self.pos[: idx.size(1)]
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.lm(self.norm(x)).flatten(0, 1), target.flatten())


def corpus(a):
    g = torch.Generator().manual_seed(a.seed)
    table = torch.softmax(2.5 * torch.randn(a.vocab, a.vocab, generator=g), -1)
    out = torch.empty(a.tokens, dtype=torch.long)
    u = torch.multinomial(table, 400, replacement=True, generator=g)
    cur = 0
    for i in range(a.tokens):
        cur = int(u[cur, i % 400])
        out[i] = cur
    return out


class Slices:
    """Non-overlapping windows; consecutive windows are dealt to the processes in turn."""

    def __init__(self, tokens, a, rank, world):
        n = (len(tokens) - 1) // a.context
        self.x = tokens[: n * a.context].view(n, a.context)
        self.y = tokens[1 : n * a.context + 1].view(n, a.context)
        g = torch.Generator().manual_seed(a.seed + 99)
        self.order = torch.randperm(n, generator=g)[rank::world]
        self.a, self.at = a, 0

    def next(self):
        idx = self.order[torch.arange(self.at, self.at + self.a.batch) % len(self.order)]
        self.at += self.a.batch
        return self.x[idx], self.y[idx]


def main():
    a = args_()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    data = Slices(corpus(a), a, rank, world)
    net = TinyLM(a)
    ddp = nn.parallel.DistributedDataParallel(net)
    matrices = [p for n, p in net.named_parameters() if p.ndim == 2 and "layers" in n]
    chosen = set(map(id, matrices))
    others = [p for p in net.parameters() if id(p) not in chosen]
    muon = Muon(matrices, lr=a.muon_lr)
    adam = torch.optim.AdamW(others, lr=a.adam_lr, betas=(0.8, 0.95), weight_decay=0.0)
    opts = [muon, adam]
    scheds = [torch.optim.lr_scheduler.LambdaLR(o, lambda s: min(1.0, 2.0 * (a.steps - s) / a.steps)) for o in opts]

    t0 = time.time()
    for step in range(a.steps):
        total = 0.0
        for micro in range(a.accum):
            ctx = ddp.no_sync() if micro < a.accum - 1 else contextlib.nullcontext()
            with ctx:
                loss = ddp(*data.next()) / a.accum
                loss.backward()
            total += loss.item()
        for o, s in zip(opts, scheds):
            o.step()
            s.step()
            o.zero_grad(set_to_none=True)
        if step % 8 == 0 or step == a.steps - 1:
            t = torch.tensor(total)
            dist.all_reduce(t)
            if rank == 0:
                print(f"step {step} loss {t.item() / world:.4f} owned {sum(o == rank for o in muon.owner.values())} "
                      f"{time.time() - t0:.1f}s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
