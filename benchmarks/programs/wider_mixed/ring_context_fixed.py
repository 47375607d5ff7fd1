"""Context parallel attention: keys and values travel round the ring, outputs merge by their log-sum-exp."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class RingComm:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.next, self.prev = (self.rank + 1) % self.world, (self.rank - 1) % self.world

    def shift(self, t):
        t = t.contiguous()
        out = torch.empty_like(t)
        ops = [dist.P2POp(dist.isend, t, self.next), dist.P2POp(dist.irecv, out, self.prev)]
        for r in dist.batch_isend_irecv(ops):
            r.wait()
        return out

    def shift_back(self, t):
        t = t.contiguous()
        out = torch.empty_like(t)
        ops = [dist.P2POp(dist.isend, t, self.prev), dist.P2POp(dist.irecv, out, self.next)]
        for r in dist.batch_isend_irecv(ops):
            r.wait()
        return out


class Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, comm):
        ctx.comm = comm
        return comm.shift(t)

    @staticmethod
    def backward(ctx, g):
        return ctx.comm.shift_back(g), None


def ring_attention(q, k, v, comm):
    scale = q.size(-1) ** -0.5
    kv = torch.stack([k, v])
    acc, lse = None, None
    for i in range(comm.world):
        s = q @ kv[0].transpose(-1, -2) * scale
        block_lse = s.logsumexp(-1, keepdim=True)
        block = (s - block_lse).exp() @ kv[1]
        if acc is None:
            acc, lse = block, block_lse
        else:
            new = torch.logaddexp(lse, block_lse)
            acc = acc * (lse - new).exp() + block * (block_lse - new).exp()
            lse = new
        if i + 1 < comm.world:
            kv = Shift.apply(kv, comm)
    return acc


class Encoder(nn.Module):
    def __init__(self, comm, dim=64, heads=4, vocab=100):
        super().__init__()
        self.comm, self.heads = comm, heads
        self.emb = nn.Embedding(vocab, dim)
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        h = self.emb(ids)
        b, t, d = h.shape
        q, k, v = (u.view(b, t, self.heads, -1).transpose(1, 2) for u in self.qkv(self.norm(h)).chunk(3, -1))
        a = ring_attention(q, k, v, self.comm)
        return self.out(h + self.o(a.transpose(1, 2).reshape(b, t, d)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=6)
    ap.add_argument("--seq", type=int, default=768)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    comm = RingComm()
    torch.manual_seed(0)
    model = Encoder(comm)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(5)
    for step in range(args.steps):
        ids = torch.randint(0, 100, (2, args.seq), generator=gen)
        local = ids.chunk(comm.world, 1)[comm.rank]
        loss = F.cross_entropy(model(local).flatten(0, 1), local.flatten(), reduction="sum") / ids.numel()
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        opt.step()
        if comm.rank == 0 and step % 3 == 0:
            print(f"step {step} local loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
