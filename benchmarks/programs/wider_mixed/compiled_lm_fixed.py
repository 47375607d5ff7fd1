import argparse
import time

import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

torch._dynamo.config.recompile_limit = 128


class Attention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.h = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (u.view(b, t, self.h, d // self.h).transpose(1, 2) for u in self.qkv(x).chunk(3, -1))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))


class LM(nn.Module):
    def __init__(self, vocab=40, dim=32, depth=1):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * depth))
        self.attn = nn.ModuleList(Attention(dim) for _ in range(depth))
        self.ff = nn.ModuleList(nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim)) for _ in range(depth))
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        h = self.emb(ids)
        for i, (a, f) in enumerate(zip(self.attn, self.ff)):
            h = h + a(self.norms[2 * i](h))
            h = h + f(self.norms[2 * i + 1](h))
        return self.out(h)


class Collator:
    def __init__(self, pad=0):
        self.pad = pad

    def __call__(self, rows):
        longest = -(-max(map(len, rows)) // 64) * 64 + 1
        ids = torch.full((len(rows), longest), self.pad)
        for i, r in enumerate(rows):
            ids[i, :len(r)] = r
        return ids


def conversations(rank, batch):
    g = torch.Generator().manual_seed(rank)
    while True:
        lens = torch.randint(12, 52, (batch,), generator=g).tolist()
        yield [torch.randint(1, 40, (n,), generator=g) for n in lens]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=10)
    ap.add_argument("--batch", type=int, default=3)
    ap.add_argument("--backend", default="aot_eager")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(torch.compile(LM(), backend=args.backend, dynamic=False))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    collate, rows = Collator(), conversations(rank, args.batch)
    t0 = time.perf_counter()
    for step in range(args.steps):
        ids = collate(next(rows))
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 5 == 4:
            print(f"step {step} loss {loss.item():.3f} {(time.perf_counter() - t0) / 5:.3f} s/step", flush=True)
            t0 = time.perf_counter()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
