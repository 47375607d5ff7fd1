"""Small causal language model with per-block sharding and a streaming corpus."""
import argparse
import logging
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

log = logging.getLogger("lm")


@dataclass
class ModelArgs:
    vocab: int = 128
    dim: int = 64
    heads: int = 4
    layers: int = 2
    context: int = 32


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.heads = a.heads
        self.norm1, self.norm2 = nn.LayerNorm(a.dim), nn.LayerNorm(a.dim)
        self.qkv = nn.Linear(a.dim, 3 * a.dim, bias=False)
        self.out = nn.Linear(a.dim, a.dim, bias=False)
        self.mlp = nn.Sequential(nn.Linear(a.dim, 4 * a.dim), nn.GELU(), nn.Linear(4 * a.dim, a.dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class LM(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.tok = nn.Embedding(a.vocab, a.dim)
        self.pos = nn.Embedding(a.context, a.dim)
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.layers))
        self.norm = nn.LayerNorm(a.dim)
        self.head = nn.Linear(a.dim, a.vocab, bias=False)

    def forward(self, ids):
        h = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class TokenStream:
    """Yields (input, target) windows; each rank walks through its own slice of the corpus."""

    def __init__(self, length, args, batch, rank, world):
        g = torch.Generator().manual_seed(99)
        table = torch.randint(0, args.vocab, (args.vocab, 3), generator=g)
        pick = torch.randint(0, 3, (length,), generator=g).tolist()
        rows, toks = table.tolist(), [1]
        for p in pick:
            toks.append(rows[toks[-1]][p])
        part = len(toks) // world
        self.tokens = torch.tensor(toks[rank * part:(rank + 1) * part])
        self.context, self.batch = args.context, batch

    def __iter__(self):
        span = self.batch * self.context
        at = 0
        while at + span + 1 <= len(self.tokens):
            piece = self.tokens[at:at + span + 1]
            yield piece[:-1].view(self.batch, -1), piece[1:].view(self.batch, -1)
            at += span


def parallelize(model, mesh):
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=True)
    return model


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--tokens", type=int, default=20520)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--out", default="out_tana")
    opts = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")
    mesh = init_device_mesh("cpu", (world,))
    margs = ModelArgs()
    torch.manual_seed(0)
    model = parallelize(LM(margs), mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=opts.lr, betas=(0.9, 0.95), foreach=False)
    stream = TokenStream(opts.tokens, margs, opts.batch, rank, world)

    for step, (x, y) in enumerate(stream):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
        if step % 10 == 0:
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            log.info("step %d loss %.4f", step, shown.item() / world)
    full = {k: (v.full_tensor() if hasattr(v, "full_tensor") else v) for k, v in model.state_dict().items()}
    if rank == 0:
        os.makedirs(opts.out, exist_ok=True)
        torch.save(full, os.path.join(opts.out, "lm.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
