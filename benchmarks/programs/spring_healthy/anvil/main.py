import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from ring import RingAttention


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = RingAttention.apply(q.contiguous(), k.contiguous(), v.contiguous())
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.n2(x))


class LongLM(nn.Module):
    def __init__(self, vocab, length, dim=64, depth=2, heads=4):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(dim), nn.Linear(dim, vocab)

    def forward(self, ids, positions):
        h = self.tok(ids) + self.pos(positions)
        for l in self.layers:
            h = l(h)
        return self.out(self.norm(h))


def documents(batch, length, vocab, gen):
    """Counting with an unknown stride per document, some tokens are replaced."""
    start = torch.randint(0, vocab, (batch, 1), generator=gen)
    stride = torch.randint(1, 6, (batch, 1), generator=gen)
    ids = (start + stride * torch.arange(length + 1)) % vocab
    noise = torch.rand(batch, length + 1, generator=gen) < 0.05
    return torch.where(noise, torch.randint(0, vocab, ids.shape, generator=gen), ids)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=61)
    ap.add_argument("--batch", type=int, default=6)
    ap.add_argument("--length", type=int, default=192)
    ap.add_argument("--vocab", type=int, default=32)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    assert args.length % world == 0
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(0)
    model = LongLM(args.vocab, args.length)
    params = list(model.parameters())
    opt = torch.optim.AdamW(params, lr=args.lr)
    gen = torch.Generator().manual_seed(1)      # all ranks read the same documents, each its stretch
    per = args.length // world
    positions = torch.arange(rank * per, (rank + 1) * per)

    for step in range(args.steps):
        docs = documents(args.batch, args.length, args.vocab, gen)
        x, y = docs[:, positions], docs[:, positions + 1]
        loss = F.cross_entropy(model(x, positions).flatten(0, 1), y.flatten(), reduction="sum") / (args.batch * args.length)
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.reshape(-1) for p in params] + [loss.detach().reshape(1)])
        dist.all_reduce(flat)
        for p, c in zip(params, flat[:-1].split([p.numel() for p in params])):
            p.grad.copy_(c.view_as(p))
        norm = nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        if step % 15 == 0 or step == args.steps - 1:
            logging.info("step %d loss %.6f of which here %.6f grad norm %.5f", step, flat[-1], loss.item(), norm)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
