"""Tokenise a corpus once, then train a bigram-mixture model on it with DDP.

The preparation is done by the first process of the node; the others read what it wrote.
"""
import argparse
import collections
import json
import os
import random
import shutil
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def invent_text(words, seed):
    rng = random.Random(seed)
    roots = ["".join(rng.choices("aeioutrnslkpm", k=rng.randint(3, 7))) for _ in range(400)]
    endings = ["", "s", "en", "ul", "ita", "or"]
    return [rng.choice(roots) + rng.choice(endings) for _ in range(words)]


def learn_merges(words, merges):
    """Byte pair encoding in the plainest way."""
    table = collections.Counter(tuple(w) + ("_",) for w in words)
    found = []
    for _ in range(merges):
        pairs = collections.Counter()
        for piece, n in table.items():
            for a, b in zip(piece, piece[1:]):
                pairs[a, b] += n
        (a, b), _n = pairs.most_common(1)[0]
        found.append((a, b))
        table = collections.Counter({join(p, a, b): n for p, n in table.items()})
    return found


def join(piece, a, b):
    out, i = [], 0
    while i < len(piece):
        if i + 1 < len(piece) and piece[i] == a and piece[i + 1] == b:
            out.append(a + b)
            i += 2
        else:
            out.append(piece[i])
            i += 1
    return tuple(out)


def encode(words, merges):
    ids, memo, names = [], {}, {}
    for w in words:
        if w not in memo:
            p = tuple(w) + ("_",)
            for a, b in merges:
                p = join(p, a, b)
            memo[w] = [names.setdefault(t, len(names)) for t in p]
        ids.extend(memo[w])
    return ids, len(names)


def prepare(folder, args):
    words = invent_text(args.words, args.seed)
    merges = learn_merges(words, args.merges)
    ids, size = encode(words, merges)
    torch.save(torch.tensor(ids), os.path.join(folder, "ids.pt"))
    with open(os.path.join(folder, "meta.json"), "w") as f:
        json.dump({"size": size, "tokens": len(ids)}, f)


class Mixture(nn.Module):
    def __init__(self, size, width=32, ctx=4):
        super().__init__()
        self.e = nn.Embedding(size, width)
        self.gate = nn.Linear(width * ctx, ctx)
        self.o = nn.Linear(width, size)

    def forward(self, x):
        h = self.e(x)
        w = self.gate(h.flatten(1)).softmax(-1)
        return self.o((h * w.unsqueeze(-1)).sum(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--words", type=int, default=20000)
    ap.add_argument("--merges", type=int, default=900)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch", type=int, default=256)
    ap.add_argument("--seed", type=int, default=33)
    ap.add_argument("--out", default="/tmp/mixture.pt")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    where = [tempfile.mkdtemp(prefix="bpe-") if rank == 0 else None]
    dist.broadcast_object_list(where, 0)
    if rank == 0:
        print("preparing ...", flush=True)
        prepare(where[0], args)
    dist.barrier()
    with open(os.path.join(where[0], "meta.json")) as f:
        meta = json.load(f)
    ids = torch.load(os.path.join(where[0], "ids.pt"), map_location="cpu").unfold(0, 5, 1)[:40000]
    data = TensorDataset(ids[:, :4], ids[:, 4])
    torch.manual_seed(args.seed)
    model = DDP(Mixture(meta["size"]))
    optim = torch.optim.Adam(model.parameters(), lr=5e-3)
    sampler = DistributedSampler(data, seed=args.seed, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optim.zero_grad(set_to_none=True)
            loss.backward()
            optim.step()
            total += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {(total[0] / total[1]).item():.4f} vocabulary {meta['size']}", flush=True)
            torch.save(model.module.state_dict(), args.out)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(where[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
