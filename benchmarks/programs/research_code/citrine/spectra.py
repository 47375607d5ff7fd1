import numpy as np
import torch
from torch.utils.data import Dataset


class MultiCropSpectra(Dataset):
    """Sum-of-lines spectra with two long and several short random windows each."""

    def __init__(self, n, length=96, n_local=3, seed=0, salt=0):
        rng = np.random.default_rng(seed)
        lines = rng.uniform(0, length, size=(6, 4))
        self.kind = rng.integers(0, 6, n)
        grid = np.arange(length)
        base = np.zeros((n, length), dtype=np.float32)
        for i in range(n):
            for c in lines[self.kind[i]]:
                base[i] += rng.uniform(0.5, 1.5) * np.exp(-0.5 * ((grid - c - rng.normal()) / 2.0) ** 2)
        self.base, self.length, self.n_local = base, length, n_local
        self.seed, self.salt, self.epoch = seed, salt, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.base)

    def _crop(self, x, size, rng):
        o = int(rng.integers(0, self.length - size + 1))
        y = x[o:o + size] * rng.uniform(0.8, 1.2) + rng.normal(0, 0.05, size)
        if rng.random() < 0.5:
            y = y[::-1]
        return torch.from_numpy(np.ascontiguousarray(y, dtype=np.float32))

    def __getitem__(self, i):
        rng = np.random.default_rng((self.seed, self.salt, self.epoch, i))
        x = self.base[i]
        return [self._crop(x, 64, rng) for _ in range(2)] + [self._crop(x, 32, rng) for _ in range(self.n_local)]


def collate_crops(batch):
    return [torch.stack(v) for v in zip(*batch)]
