import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

FEATS = 40


class Utterances(Dataset):
    """Manifest with durations (frames) and transcripts; features are synthesised on read."""

    def __init__(self, n, vocab=30, seed=0):
        rng = np.random.default_rng(seed)
        self.durations = np.clip(rng.lognormal(5.0, 0.6, n), 48, 640).astype(int)
        self.codebook = torch.from_numpy(np.random.default_rng(5).normal(size=(vocab, FEATS))).float()
        self.texts = [rng.integers(1, vocab, size=max(2, d // 16)) for d in self.durations]
        self.seeds = rng.integers(0, 1 << 30, n)

    def __len__(self):
        return len(self.durations)

    def __getitem__(self, i):
        text = torch.from_numpy(self.texts[i])
        frames = int(self.durations[i])
        align = torch.linspace(0, len(text) - 1e-3, frames).long()
        g = torch.Generator().manual_seed(int(self.seeds[i]))
        return self.codebook[text[align]] + 0.5 * torch.randn(frames, FEATS, generator=g), text


class BucketBatchSampler(Sampler):
    """Batches utterances of similar duration so that little is lost to padding, and
    hands each replica its share of the batches. Batch order is shuffled every epoch."""

    def __init__(self, durations, batch_size, num_replicas, rank, seed=0):
        order = np.argsort(durations, kind="stable")
        batches = [order[i : i + batch_size].tolist() for i in range(0, len(order) - batch_size + 1, batch_size)]
        per_replica = len(batches) // num_replicas
        self.batches = batches[rank : per_replica * num_replicas : num_replicas]
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        rng = np.random.default_rng(self.seed + self.epoch)
        for i in rng.permutation(len(self.batches)):
            yield self.batches[i]


def collate(items):
    feats, texts = zip(*items)
    x = torch.nn.utils.rnn.pad_sequence(feats, batch_first=True)
    y = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    return x, torch.tensor([len(f) for f in feats]), y, torch.tensor([len(t) for t in texts])
