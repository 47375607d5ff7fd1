"""Record shards on disk and the stream that reads them."""
import random
from pathlib import Path

import torch
from torch.utils.data import IterableDataset

VOCAB, QUEUES, WORDS = 160, 6, 12


def write_shards(root, count, rows, seed):
    gen = torch.Generator().manual_seed(seed)
    root = Path(root)
    root.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        y = torch.randint(0, QUEUES, (rows,), generator=gen)
        topical = (y[:, None] * 23 + torch.randint(0, 30, (rows, WORDS), generator=gen)) % VOCAB
        filler = torch.randint(0, VOCAB, (rows, WORDS), generator=gen)
        keep = torch.rand(rows, WORDS, generator=gen) < 0.45
        torch.save({"x": torch.where(keep, topical, filler), "y": y}, root / f"part-{i:03d}.pt")


class ShardStream(IterableDataset):
    """Yields (words, queue) rows of this replica's shards, a few shards mixed at a time."""

    def __init__(self, root, seed, rank, world, mix=2):
        self.paths = sorted(Path(root).glob("part-*.pt"))
        if len(self.paths) % world:
            raise ValueError(f"{len(self.paths)} shards cannot be dealt to {world} replicas")
        self.seed, self.rank, self.world, self.mix = seed, rank, world, mix
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        deck = list(self.paths)
        random.Random(self.seed * 7919 + self.epoch).shuffle(deck)
        hand = deck[self.rank::self.world]
        riffle = random.Random((self.seed * 7919 + self.epoch) * 64 + self.rank)
        for start in range(0, len(hand), self.mix):
            pool = []
            for path in hand[start:start + self.mix]:
                part = torch.load(path, map_location="cpu")
                pool.extend(zip(part["x"], part["y"]))
            riffle.shuffle(pool)
            yield from pool
