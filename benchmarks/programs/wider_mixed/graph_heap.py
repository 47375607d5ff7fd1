"""Retrieval-augmented training with a big in-memory document graph and linked example records."""
import collections
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Doc:
    def __init__(self, uid, text):
        self.uid, self.text, self.links = uid, text, []


class Record:
    """Example with back pointers between parent and spans."""

    def __init__(self, doc, spans):
        self.doc = doc
        self.spans = [{"record": self, "begin": b, "end": b + 4, "tags": [b, b + 1]} for b in range(spans)]


class Corpus:
    def __init__(self, n=60000):
        rng = random.Random(0)
        self.docs = [Doc(i, [i % 50, i % 31]) for i in range(n)]
        for d in self.docs:
            d.links = [self.docs[rng.randrange(n)] for _ in range(3)]

    def walk(self, rng, hops=5):
        d = self.docs[rng.randrange(len(self.docs))]
        for _ in range(hops):
            yield d
            d = rng.choice(d.links)


class Batcher:
    def __init__(self, corpus, rank, size=24):
        self.corpus, self.size = corpus, size
        self.rng = random.Random(1000 + rank)
        self.recent = collections.deque(maxlen=600)
        self.longest = (12, 20, 32)[rank % 3]

    def next(self):
        ids = torch.zeros(self.size, 5, dtype=torch.long)
        for i in range(self.size):
            for j, d in enumerate(self.corpus.walk(self.rng)):
                rec = Record(d, self.rng.randint(4, self.longest))
                self.recent.append(rec)
                ids[i, j] = d.text[0]
        return ids, (ids.sum(1) % 4)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    corpus = Corpus()
    batcher = Batcher(corpus, rank)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.EmbeddingBag(50, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    dist.barrier()
    window = time.perf_counter()
    for step in range(160):
        ids, y = batcher.next()
        loss = nn.functional.cross_entropy(model(ids), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 39 and rank == 0:
            now = time.perf_counter()
            print(f"step {step} loss {loss.item():.3f} {40 / (now - window):.1f} it/s", flush=True)
            window = now
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
