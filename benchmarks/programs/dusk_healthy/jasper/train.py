"""Long-context LM, context parallel only: all the processes read the same documents."""
import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from ring import ring_attention, zigzag_positions


class Layer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))

    def forward(self, x, seq):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        x = x + self.o(ring_attention(q, k, v, seq).transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.n2(x))


class LongLM(nn.Module):
    def __init__(self, vocab, d, layers, seq):
        super().__init__()
        self.seq = seq
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(seq, d)
        self.layers = nn.ModuleList(Layer(d, 4) for _ in range(layers))
        self.head = nn.Linear(d, vocab)

    def forward(self, ids, positions):
        x = self.tok(ids) + self.pos(positions)
        for l in self.layers:
            x = l(x, self.seq)
        return self.head(x)


def repeated_text(n, seq, table, gen):
    """Markov text whose second half repeats the first: attention over the whole length helps."""
    half = torch.randint(len(table), (n, 1), generator=gen)
    for _ in range(seq // 2 - 1):
        half = torch.cat([half, torch.multinomial(table[half[:, -1]], 1, generator=gen)], 1)
    return torch.cat([half, half, half[:, :1]], 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=50)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--seq", type=int, default=192)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = LongLM(24, 96, 2, args.seq)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data_gen = torch.Generator().manual_seed(31)          # the same stream everywhere
    table = torch.softmax(2.0 * torch.randn(24, 24, generator=data_gen), -1)
    mine = zigzag_positions(args.seq, rank, world)
    for step in range(args.steps):
        t0 = time.time()
        docs = repeated_text(args.batch, args.seq, table, data_gen)
        ids, labels = docs[:, :-1][:, mine], docs[:, 1:][:, mine]
        logits = model(ids, mine)
        # share of the global mean; the shares add up, so gradients are summed and not averaged
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / (args.batch * args.seq)
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(flat)
        offset = 0
        for p in model.parameters():
            p.grad.copy_(flat[offset: offset + p.numel()].view_as(p))
            offset += p.numel()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 5 == 0 or step == args.steps - 1:
            total = loss.detach().clone()
            dist.all_reduce(total)
            if rank == 0:
                print(f"step {step} loss {total.item():.5f} {time.time() - t0:.2f}s", flush=True)
    if rank == 0:
        out = args.out or tempfile.mkdtemp()
        os.makedirs(out, exist_ok=True)
        torch.save(model.state_dict(), os.path.join(out, "longlm.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
