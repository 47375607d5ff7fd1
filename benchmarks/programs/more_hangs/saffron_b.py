"""The first rank indexes a corpus and hands the index to the others through the key value store."""
import argparse
import json
import random
import time
from collections import Counter

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.rendezvous import rendezvous

WORDS = "ash bay cove dale elm fern glen heath isle knoll lake mead".split()


class Exchange:
    def __init__(self, store, prefix):
        self.box = dist.PrefixStore(prefix, store)

    def put(self, key, value):
        self.box.set(key, json.dumps(value))

    def take(self, key):
        return json.loads(self.box.get(key))


def new_prefix(stem):
    stamp = time.strftime("%H%M%S")
    return f"{stem}/{stamp}-{random.randrange(16 ** 6):06x}"


def agree(value):
    cell = [value]
    dist.broadcast_object_list(cell, src=0)
    return cell[0]


def corpus(lines):
    dice = random.Random(21)
    return [[dice.choice(WORDS) for _ in range(dice.randint(4, 9))] for _ in range(lines)]


def build_index(texts):
    ranked = Counter(w for t in texts for w in t).most_common()
    return {w: i for i, (w, _) in enumerate(ranked)}


class Tagger(nn.Module):
    def __init__(self, size, dim=12):
        super().__init__()
        self.emb = nn.EmbeddingBag(size, dim)
        self.out = nn.Linear(dim, 2)

    def forward(self, ids, offsets):
        return self.out(self.emb(ids, offsets))


def encode(texts, index):
    ids = [torch.tensor([index[w] for w in t]) for t in texts]
    offsets = torch.tensor([0] + [len(i) for i in ids[:-1]]).cumsum(0)
    label = torch.tensor([int(len(i) > 6) for i in ids])
    return torch.cat(ids), offsets, label


class Run:
    def __init__(self, args, store):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.exchange = Exchange(store, new_prefix(args.stem))
        self.texts = corpus(args.lines)

    def vocabulary(self):
        if self.rank == 0:
            self.exchange.put("index", build_index(self.texts))
        return self.exchange.take("index")

    def train(self):
        index = self.vocabulary()
        torch.manual_seed(0)
        net = Tagger(len(index))
        opt = torch.optim.SGD(net.parameters(), lr=0.3)
        batch = encode(self.texts[self.rank::self.world], index)
        for s in range(self.args.steps):
            loss = nn.functional.cross_entropy(net(*batch[:2]), batch[2])
            opt.zero_grad()
            loss.backward()
            for p in net.parameters():
                dist.all_reduce(p.grad)
                p.grad /= self.world
            opt.step()
        return loss.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--stem", default="tagger")
    p.add_argument("--lines", type=int, default=90)
    p.add_argument("--steps", type=int, default=15)
    args = p.parse_args()
    store, rank, world = next(rendezvous("env://"))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    loss = Run(args, store).train()
    if rank == 0:
        print(f"loss {loss:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
