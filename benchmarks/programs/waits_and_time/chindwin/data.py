import torch


class TagCorpus:
    """Synthetic sentence classification; a few documents carry contradictory labels."""

    def __init__(self, size: int, length: int, vocab: int, classes: int, seed: int):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, classes, (size,), generator=g)
        noise = torch.randint(0, vocab, (size, length), generator=g)
        stamp = (self.labels * (vocab // classes))[:, None] + torch.randint(
            0, vocab // classes, (size, length), generator=g
        )
        keep = torch.rand(size, length, generator=g) < 0.55
        self.ids = torch.where(keep, stamp, noise)
        third = size // 3
        flip = torch.rand(size, generator=g) < 0.08
        flip[2 * third:] = False
        self.labels = torch.where(flip, (self.labels + 1) % classes, self.labels)

    def __len__(self):
        return self.labels.numel()


class ShardedWeightedSampler:
    """Contiguous shards, drawn with per-sample weights inside the shard."""

    def __init__(self, corpus, rank, world, seed):
        per = len(corpus) // world
        self.lo, self.hi = rank * per, (rank + 1) * per
        self.weights = torch.ones(len(corpus))
        self.seed = seed
        self.rank = rank

    def epoch(self, epoch: int, batch: int):
        g = torch.Generator().manual_seed(self.seed * 7919 + epoch * 31 + self.rank)
        w = self.weights[self.lo:self.hi]
        n = self.hi - self.lo
        pick = torch.multinomial(w, n, replacement=True, generator=g) + self.lo
        for i in range(0, n - batch + 1, batch):
            yield pick[i:i + batch]
