import random

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, Sampler


class Readings(Dataset):
    """Meter traces from 8 to 200 steps; the label is the dominant regime."""

    def __init__(self, n, seed):
        rnd = random.Random(seed)
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            length = int(8 * 25 ** rnd.random())
            label = rnd.randrange(4)
            trace = torch.randn(length, 6, generator=g)
            trace[:, label] += 0.7
            self.rows.append((trace, label))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]

    def length(self, i):
        return len(self.rows[i][0])


def collate(rows):
    traces, labels = zip(*rows)
    return pad_sequence(traces, batch_first=True), torch.tensor([len(t) for t in traces]), torch.tensor(labels)


class LengthBatches(Sampler):
    """Ready-made batches of neighbours in length; the order of batches is new each epoch."""

    def __init__(self, dataset, batch_size, rank, world, seed=0):
        order = sorted(range(len(dataset)), key=dataset.length)
        per_rank = len(order) // world // batch_size * batch_size
        mine = order[rank:per_rank * world:world]
        self.batches = [mine[i:i + batch_size] for i in range(0, per_rank, batch_size)]
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        batches = list(self.batches)
        random.Random(self.seed + self.epoch).shuffle(batches)
        return iter(batches)

    def __len__(self):
        return len(self.batches)
