import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from lexicon import Lexicon


class Sentences(Dataset):
    """Sentences sorted from easy (short) to hard; text is tokenised by the workers."""

    def __init__(self, n, lexicon_path, max_words=20, seed=0):
        rng = np.random.default_rng(seed)
        self.lengths = np.sort(rng.integers(2, max_words + 1, size=n))
        self.words = [rng.integers(0, 12000, size=k) for k in self.lengths]
        self.lexicon_path = lexicon_path
        self.lexicon = None

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        ids = torch.tensor(self.lexicon.encode(f"w{w:05d}" for w in self.words[i]))
        return ids, int((ids % 2).sum() * 2 > len(ids))


def open_lexicon(worker_id):
    data = get_worker_info().dataset
    data.lexicon = Lexicon(data.lexicon_path)


class PacedSampler(Sampler):
    """Draws from the easiest ``limit`` sentences; every process takes its own slice."""

    def __init__(self, limit, samples, rank, world, seed):
        self.limit, self.samples = limit, samples
        self.rank, self.world, self.seed = rank, world, seed

    def set_pace(self, limit, seed):
        self.limit, self.seed = limit, seed

    def __len__(self):
        return self.samples // self.world

    def __iter__(self):
        rng = np.random.default_rng(self.seed)
        yield from rng.integers(0, self.limit, self.samples)[self.rank :: self.world].tolist()


def collate(batch):
    ids, y = zip(*batch)
    return torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=500), torch.tensor(y)


def build_loader(dataset, sampler, batch_size, workers):
    return DataLoader(
        dataset,
        batch_size,
        sampler=sampler,
        collate_fn=collate,
        num_workers=workers,
        worker_init_fn=open_lexicon,
        persistent_workers=workers > 0,
    )
