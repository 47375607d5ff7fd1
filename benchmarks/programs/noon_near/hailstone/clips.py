import numpy as np
import torch
from torch.utils.data import Dataset


class ClipDataset(Dataset):
    """Synthetic keyword clips: a tone pattern per class, rendered from a per-index seed."""

    def __init__(self, n, classes=6, rate=16000, seconds=3, seed=0):
        self.n, self.classes, self.rate, self.seconds, self.seed = n, classes, rate, seconds, seed
        self.window = torch.hann_window(512)

    def __len__(self):
        return self.n

    def _wave(self, index):
        rng = np.random.default_rng((self.seed, index))
        label = index % self.classes
        t = np.arange(self.rate * self.seconds, dtype=np.float32) / self.rate
        wave = np.sin(2 * np.pi * (220 + 130 * label) * t + rng.uniform(0, 6.28)).astype(np.float32)
        wave *= (np.sin(2 * np.pi * (label + 1) * t) > 0).astype(np.float32)
        if rng.random() < 0.1:
            wave[:] = 0
        else:
            wave += rng.normal(0, 0.6, wave.shape).astype(np.float32)
        return torch.from_numpy(wave), label

    def __getitem__(self, index):
        wave, label = self._wave(index)
        spec = torch.stft(wave, 512, 512, window=self.window, return_complex=True).abs()
        level = spec.pow(2).mean().item()
        if level < 1e-6:
            raise ValueError(f"clip {index}: level {level:.1e} is below the floor")
        return torch.log1p(spec)[:128, ::2], label


class Fallback(Dataset):
    """Serves the following clip when one cannot be read and keeps a record for the report."""

    def __init__(self, base):
        self.base = base
        self.problems = []

    def __len__(self):
        return len(self.base)

    def __getitem__(self, index):
        for attempt in range(8):
            try:
                return self.base[(index + attempt) % len(self.base)]
            except ValueError as err:
                self.problems.append(f"{type(err).__name__}: {err}")
        raise RuntimeError(f"no readable clip near {index}")
