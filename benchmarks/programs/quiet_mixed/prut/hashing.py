import random

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class HashedText:
    def __init__(self, docs, buckets, words=18):
        rng = random.Random(0)
        rows, labels = [], []
        for _ in range(docs):
            topic = rng.randrange(3)
            rows.append([(rng.randrange(200) + 200 * (topic if rng.random() < 0.7 else rng.randrange(3))) % buckets for _ in range(words)])
            labels.append(topic)
        self.ds = TensorDataset(torch.tensor(rows), torch.tensor(labels))

    def loader(self, batch):
        sampler = DistributedSampler(self.ds, seed=2)
        return DataLoader(self.ds, batch, sampler=sampler, drop_last=True), sampler


class NGramNet(nn.Module):
    def __init__(self, buckets, dim=64):
        super().__init__()
        self.bag = nn.EmbeddingBag(buckets, dim, mode="mean")
        self.out = nn.Linear(dim, 3)

    def forward(self, rows):
        return self.out(self.bag(rows))
