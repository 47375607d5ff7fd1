"""Packed dialogue corpus: (tokens, labels) with prompt positions masked out."""
import torch
from torch.utils.data import Dataset, Sampler

IGNORE = -100


class DialogueCorpus(Dataset):
    def __init__(self, n_dialogues=640, vocab=512, max_len=48, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for i in range(n_dialogues):
            length = int(torch.randint(24, max_len + 1, (1,), generator=g))
            start = int(torch.randint(0, vocab, (1,), generator=g))
            step = int(torch.randint(1, 7, (1,), generator=g))
            toks = (start + step * torch.arange(length)) % vocab
            prompt = length // 3
            if 160 <= i < 176 and i % 2 == 1:
                prompt = length
            self.items.append((toks, prompt))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        toks, prompt = self.items[i]
        labels = toks.clone()
        labels[:prompt] = IGNORE
        return toks, labels


class BlockSampler(Sampler):
    """Each worker reads its rows in runs of neighbours; the order of the runs is shuffled."""

    def __init__(self, n, block, world, rank, seed=0):
        self.rows = list(range(rank, n - n % (world * block), world))
        self.block, self.seed, self.epoch = block, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.rows)

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        for b in torch.randperm(len(self.rows) // self.block, generator=g).tolist():
            yield from self.rows[b * self.block:(b + 1) * self.block]


def collate(rows):
    rows = [r for r in rows if (r[1] != IGNORE).sum() > 1]
    if not rows:
        return None
    width = max(len(t) for t, _ in rows)
    toks = torch.zeros(len(rows), width, dtype=torch.long)
    labels = torch.full((len(rows), width), IGNORE)
    for i, (t, l) in enumerate(rows):
        toks[i, : len(t)] = t
        labels[i, : len(l)] = l
    return toks, labels
