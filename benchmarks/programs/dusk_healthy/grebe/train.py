"""Speed-run style LM training with Muon for matrices and AdamW for the rest, no DDP wrapper."""
import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from muon import Muon


class Layer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)
        self.scale = nn.Parameter(torch.full((2,), 0.5))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(F.rms_norm(x, (d,))).view(b, t, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.scale[0] * self.o(a)
        return x + self.scale[1] * self.down(F.relu(self.up(F.rms_norm(x, (d,)))).square())


class GPT(nn.Module):
    def __init__(self, vocab=64, d=128, layers=3, ctx=64):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        self.layers = nn.ModuleList(Layer(d, 4) for _ in range(layers))
        self.head = nn.Linear(d, vocab, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe.weight[: idx.shape[1]]
        for l in self.layers:
            x = l(x)
        return F.cross_entropy(self.head(F.rms_norm(x, (x.shape[-1],))).flatten(0, 1), targets.flatten())


def token_stream(n=60000, vocab=64):
    g = torch.Generator().manual_seed(13)
    nxt = torch.stack([torch.randperm(vocab, generator=g) for _ in range(3)])
    pick = torch.multinomial(torch.tensor([0.7, 0.2, 0.1]), n, replacement=True, generator=g).tolist()
    toks, cur = [], 0
    for p in pick:
        cur = int(nxt[p, cur])
        toks.append(cur)
    return torch.tensor(toks)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=70)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--seq", type=int, default=64)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = GPT()
    matrices = [p for n, p in model.layers.named_parameters() if p.ndim == 2]
    known = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in known]
    muon, adam = Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=3e-3, betas=(0.8, 0.95))
    scheds = [torch.optim.lr_scheduler.LambdaLR(o, lambda s: min(1.0, (args.steps - s) / (0.4 * args.steps))) for o in (muon, adam)]
    toks = token_stream()
    pos, stride = rank * args.batch * args.seq, world * args.batch * args.seq
    for step in range(args.steps):
        t0 = time.time()
        if pos + args.batch * args.seq + 1 > len(toks):
            pos = rank * args.batch * args.seq
        buf = toks[pos: pos + args.batch * args.seq + 1]
        pos += stride
        loss = model(buf[:-1].view(args.batch, args.seq), buf[1:].view(args.batch, args.seq))
        model.zero_grad(set_to_none=True)
        loss.backward()
        for p in others:
            dist.all_reduce(p.grad)
            p.grad /= world
        muon.step()
        adam.step()
        for s in scheds:
            s.step()
        if step % 10 == 0 or step == args.steps - 1:
            total = loss.detach().clone()
            dist.all_reduce(total)
            if rank == 0:
                print(f"step {step} loss {total.item() / world:.4f} {1000 * (time.time() - t0):.0f}ms", flush=True)
    if rank == 0:
        out = args.out or tempfile.mkdtemp()
        os.makedirs(out, exist_ok=True)
        torch.save(model.state_dict(), os.path.join(out, "gpt.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
