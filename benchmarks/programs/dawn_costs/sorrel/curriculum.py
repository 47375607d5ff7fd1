"""Copy-task transformer with a sequence-length curriculum."""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class CopyModel(nn.Module):
    def __init__(self, vocab=32, dim=64, heads=4, depth=2, max_len=512):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(max_len, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens):
        t = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(t)
        h = self.tok(tokens) + self.pos(torch.arange(t))
        return self.head(self.body(h, mask=mask, is_causal=True))


def length_at(step, total, start, stop, grain=16):
    raw = start + (stop - start) * min(1.0, step / (0.85 * total))
    return int(raw) // grain * grain


def periodic(rows, length, gen, vocab=32):
    period = 6
    motif = torch.randint(vocab, (rows, period), generator=gen)
    return motif.repeat(1, length // period + 2)[:, :length + 1]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--start-len", type=int, default=16)
    p.add_argument("--max-len", type=int, default=224)
    p.add_argument("--rows", type=int, default=16)
    a = p.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(12)
    model = DDP(CopyModel())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    for step in range(a.steps):
        length = length_at(step, a.steps, a.start_len, a.max_len)
        began = time.perf_counter()
        seq = periodic(a.rows, length, gen)
        loss = F.cross_entropy(model(seq[:, :-1]).flatten(0, 1), seq[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0 and rank == 0:
            took = 1e3 * (time.perf_counter() - began)
            print(f"step {step:3d} len {length:3d} loss {loss.item():.4f} {took:.0f} ms", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
