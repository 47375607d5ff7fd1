import lightning as L
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

from module import PAD


class Sentences(Dataset):
    """Two sources: short fully annotated notes and long pages with few annotated positions."""

    def __init__(self, n, vocab, tags, seed):
        g = torch.Generator().manual_seed(seed)
        rule = torch.randint(tags, (vocab,), generator=torch.Generator().manual_seed(5))
        self.rows = []
        for i in range(n):
            long = i % 2 == 1
            length = int(torch.randint(28, 40, (1,), generator=g)) if long else \
                int(torch.randint(6, 12, (1,), generator=g))
            tokens = torch.randint(1, vocab, (length,), generator=g)
            shifted = torch.cat([tokens[:1], tokens[:-1]])
            labels = (rule[tokens] + (rule[shifted] if long else 0)) % tags
            if not long:
                labels[torch.rand(length, generator=g) < 0.7] = PAD
                labels[0] = rule[tokens[0]]
            self.rows.append((tokens, labels))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class LengthGrouped(Sampler):
    """Shuffles, then sorts inside every global batch so that padding stays small."""

    def __init__(self, data, batch_size, rank, world, seed=0):
        self.lengths = torch.tensor([len(t) for t, _ in data.rows])
        self.batch_size, self.rank, self.world, self.seed = batch_size, rank, world, seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.lengths) // (self.batch_size * self.world) * self.batch_size

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.lengths), generator=g)
        size = self.batch_size * self.world
        for at in range(0, len(order) // size * size, size):
            group = order[at:at + size]
            group = group[torch.argsort(self.lengths[group], stable=True)]
            yield from group[self.rank * self.batch_size:(self.rank + 1) * self.batch_size].tolist()


def collate(rows):
    width = max(len(t) for t, _ in rows)
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    tags = torch.full((len(rows), width), PAD)
    for i, (t, y) in enumerate(rows):
        tokens[i, :len(t)], tags[i, :len(y)] = t, y
    return {"tokens": tokens, "tags": tags}


class TaggingData(L.LightningDataModule):
    def __init__(self, vocab=24, tags=6, batch_size=8, n=320):
        super().__init__()
        self.vocab, self.tags, self.batch_size, self.n = vocab, tags, batch_size, n

    def setup(self, stage=None):
        self.train_set = Sentences(self.n, self.vocab, self.tags, 1)
        self.valid_set = Sentences(64, self.vocab, self.tags, 2)

    def train_dataloader(self):
        sampler = LengthGrouped(self.train_set, self.batch_size, self.trainer.global_rank,
                                self.trainer.world_size, seed=3)
        return DataLoader(self.train_set, self.batch_size, collate_fn=collate, sampler=sampler)

    def val_dataloader(self):
        sampler = DistributedSampler(self.valid_set, self.trainer.world_size,
                                     self.trainer.global_rank, shuffle=False)
        return DataLoader(self.valid_set, 16, collate_fn=collate, sampler=sampler)
