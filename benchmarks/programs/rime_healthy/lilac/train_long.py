import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from ring import RingAttention


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        a = RingAttention.apply(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.o(a)
        return x + self.mlp(self.n2(x))


class Model(nn.Module):
    def __init__(self, vocab, d, h, depth, length):
        super().__init__()
        self.emb, self.pos = nn.Embedding(vocab, d), nn.Embedding(length, d)
        self.blocks = nn.Sequential(*[Block(d, h) for _ in range(depth)])
        self.norm, self.out = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, x, pos):
        return self.out(self.norm(self.blocks(self.emb(x) + self.pos(pos))))


def periodic(b, length, vocab, gen):
    period = 16
    base = torch.randint(0, vocab, (b, period), generator=gen)
    return base.repeat(1, length // period + 1)[:, : length + 1]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--length", type=int, default=128)
    ap.add_argument("--steps", type=int, default=200)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    r, w = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = Model(16, 64, 4, 2, args.length)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    part = args.length // w
    pos = torch.arange(part) * w + r
    gen = torch.Generator().manual_seed(1)
    tokens = args.batch * args.length
    for step in range(args.steps):
        seq = periodic(args.batch, args.length, 16, gen)
        x, y = seq[:, pos], seq[:, pos + 1]
        loss = F.cross_entropy(net(x, pos).flatten(0, 1), y.flatten(), reduction="sum") / tokens
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in net.parameters()] + [loss.detach().view(1)])
        dist.all_reduce(flat)
        at = 0
        for p in net.parameters():
            p.grad.copy_(flat[at:at + p.numel()].view_as(p))
            at += p.numel()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        if (step + 1) % 25 == 0 and r == 0:
            print(f"step {step + 1} loss {flat[-1].item():.4f}", flush=True)
    if r == 0:
        torch.save(net.state_dict(), "long.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
