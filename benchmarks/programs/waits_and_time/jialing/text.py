import random

import torch

WORDS = (
    "river delta gorge barge silt dam ferry rice lake plain bridge boat rain flood mist cliff "
    "harbour lock weir stream market village temple garden crane heron reed stone sand clay"
).split()


def write_document(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


class DocumentShards:
    """Documents dealt round-robin, batched with their neighbours in length."""

    def __init__(self, docs, seed, rank, world, batch):
        rng = random.Random(seed)
        texts = [write_document(rng, rng.randint(6, 14)) for _ in range(docs)]
        for at in (181, 307):
            texts[at] = write_document(rng, 120)
        chars = sorted(set("".join(texts)))
        self.table = {c: i + 1 for i, c in enumerate(chars)}
        self.vocab = len(chars) + 1
        self.longest = max(map(len, texts)) + 1
        held = docs // 10
        self.val = texts[:held][rank::world]
        self.train = texts[held:][rank::world]
        self.batch = batch
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def encode(self, texts):
        width = max(map(len, texts))
        out = torch.zeros(len(texts), width, dtype=torch.long)
        for row, t in enumerate(texts):
            out[row, : len(t)] = torch.tensor([self.table[c] for c in t])
        return out

    def validation(self):
        return self.encode([t[:80] for t in self.val])

    def __len__(self):
        return len(self.train) // self.batch

    def __iter__(self):
        order = list(range(len(self.train)))
        random.Random(self.seed * 1009 + self.epoch).shuffle(order)
        for i in range(len(self)):
            yield self.encode([self.train[j] for j in order[i * self.batch:(i + 1) * self.batch]])
