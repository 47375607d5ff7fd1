"""Language model trained with many local steps between rare outer steps."""
import argparse
import os
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from diloco import OuterLoop

WORDS = {
    "subject": "the cat|a dog|my aunt|the old king|some sailor|our cook".split("|"),
    "verb": "sees|likes|paints|forgets|follows|hears".split("|"),
    "object": "the moon|a boat|warm bread|the garden|an owl|green tea".split("|"),
    "tail": "at night|in spring|by the sea|with joy|again".split("|"),
}


def sentences(n, seed):
    r = random.Random(seed)
    return " ".join(" ".join(r.choice(WORDS[k]) for k in WORDS) + "." for _ in range(n))


class Charset:
    def __init__(self, text):
        self.chars = sorted(set(text))
        self.index = {c: i for i, c in enumerate(self.chars)}

    def encode(self, text):
        return torch.tensor([self.index[c] for c in text])

    def decode(self, ids):
        return "".join(self.chars[i] for i in ids)


class CharGRU(nn.Module):
    def __init__(self, vocab, dim=64):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(vocab, dim), nn.GRU(dim, dim, batch_first=True), nn.Linear(dim, vocab)

    def forward(self, ids, h=None):
        y, h = self.rnn(self.emb(ids), h)
        return self.out(y), h


class Chunks:
    """Endless random windows from the private part of the text."""

    def __init__(self, ids, length, batch, seed):
        self.ids, self.length, self.batch = ids, length, batch
        self.gen = torch.Generator().manual_seed(seed)

    def next(self):
        start = torch.randint(0, len(self.ids) - self.length - 1, (self.batch, 1), generator=self.gen)
        rows = self.ids[start + torch.arange(self.length + 1)]
        return rows[:, :-1], rows[:, 1:]


@torch.no_grad()
def held_out(model, ids, length, rank, world):
    model.eval()
    usable = (len(ids) - 1) // length * length
    x, y = ids[:usable].view(-1, length)[rank::world], ids[1:usable + 1].view(-1, length)[rank::world]
    logits, _ = model(x)
    s = torch.stack([F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum"), torch.tensor(float(y.numel()))])
    dist.all_reduce(s)
    model.train()
    return (s[0] / s[1]).item()


@torch.no_grad()
def speak(model, charset, start="the ", n=48):
    model.eval()
    ids, h = charset.encode(start)[None], None
    out = ids[0].tolist()
    for _ in range(n):
        logits, h = model(ids, h)
        ids = logits[:, -1:].argmax(-1)
        out.append(ids.item())
    model.train()
    return charset.decode(out)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=6)
    ap.add_argument("--inner", type=int, default=20)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--length", type=int, default=40)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--outer-lr", type=float, default=0.7)
    ap.add_argument("--outer-momentum", type=float, default=0.6)
    ap.add_argument("--seed", type=int, default=27)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    text, held_text = sentences(1600, seed=1), sentences(120, seed=2)
    charset = Charset(text)
    ids, held = charset.encode(text), charset.encode(held_text)
    part = len(ids) // world
    data = Chunks(ids[rank * part:(rank + 1) * part], args.length, args.batch, args.seed + rank)

    torch.manual_seed(args.seed)
    model = CharGRU(len(charset.chars))
    outer = OuterLoop(model, args.outer_lr, args.outer_momentum)
    inner = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.99))
    for r in range(args.rounds):
        total = 0.0
        for _ in range(args.inner):
            x, y = data.next()
            loss = F.cross_entropy(model(x)[0].flatten(0, 1), y.flatten())
            inner.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            inner.step()
            total += loss.item()
        moved = outer.synchronise()
        nll = held_out(model, held, args.length, rank, world)
        if rank == 0:
            print(f"round {r} local loss {total / args.inner:.4f} moved {moved:.3f} held-out {nll:.4f}", flush=True)
    if rank == 0:
        print("sample:", speak(model, charset), flush=True)
        os.makedirs("runs/coriander", exist_ok=True)
        torch.save({"model": model.state_dict(), "outer": outer.state_dict()}, "runs/coriander/last.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
