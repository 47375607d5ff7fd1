"""Small decoder language model cut into three pipeline stages, GPipe schedule over send/recv.

torchrun --standalone --nproc-per-node 3 pipe_lm.py
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM, SEQ = 64, 64, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, 4, DIM // 4).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, DIM))
        return x + self.mlp(self.n2(x))


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(SEQ, DIM)

    def forward(self, ids):
        return self.tok(ids) + self.pos.weight


def build_stage(rank):
    if rank == 0:
        return nn.Sequential(Embed(), Block())
    if rank == 1:
        return nn.Sequential(Block(), Block())
    return nn.Sequential(Block(), nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB))


def sample(gen, n):
    ids = torch.empty(n, SEQ + 1, dtype=torch.long)
    ids[:, 0] = torch.randint(VOCAB, (n,), generator=gen)
    for t in range(SEQ):
        jump = torch.randint(3, (n,), generator=gen)
        ids[:, t + 1] = (5 * ids[:, t] + 7 + jump) % VOCAB
    return ids[:, :-1], ids[:, 1:]


def run_step(stage, rank, last, xs, ys):
    ins, outs, total = [], [], 0.0
    for x, y in zip(xs, ys):
        if rank > 0:
            x = torch.empty(x.shape[0], SEQ, DIM)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        out = stage(x)
        if rank == last:
            out = F.cross_entropy(out.flatten(0, 1), y.flatten()) / len(xs)
            total += out.item()
        else:
            dist.send(out.detach(), rank + 1)
        ins.append(x)
        outs.append(out)
    for x, out in zip(ins, outs):
        if rank == last:
            out.backward()
        else:
            g = torch.empty_like(out)
            dist.recv(g, rank + 1)
            out.backward(g)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--micro", type=int, default=4)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--lr", type=float, default=0.2)
    ap.add_argument("--max-norm", type=float, default=0.5)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    torch.manual_seed(100 + rank)
    stage = build_stage(rank)
    opt = torch.optim.SGD(stage.parameters(), lr=args.lr, momentum=0.9)
    gen = torch.Generator().manual_seed(3)
    for step in range(args.steps):
        x, y = sample(gen, args.batch)
        opt.zero_grad()
        loss = run_step(stage, rank, last, x.chunk(args.micro), y.chunk(args.micro))
        sq = nn.utils.get_total_norm([p.grad for p in stage.parameters()]) ** 2
        dist.all_reduce(sq)
        nn.utils.clip_grads_with_norm_(stage.parameters(), args.max_norm, sq.sqrt())
        opt.step()
        if rank == last and step % 10 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
