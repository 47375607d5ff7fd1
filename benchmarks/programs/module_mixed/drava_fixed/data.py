import numpy as np
import torch
from torch.utils.data import Dataset


class Waves(Dataset):
    """Sums of sines with random gain; the target is the dominant frequency bin of each frame."""

    def __init__(self, n=256, samples=402):
        self.n, self.samples = n, samples

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        f = 1 + (i * 7) % 24
        t = np.linspace(0, 1, self.samples, dtype=np.float32)
        gain = np.random.uniform(0.6, 1.4)
        wav = gain * np.sin(2 * np.pi * f * t) + 0.1 * np.random.randn(self.samples)
        return torch.from_numpy(wav.astype(np.float32)), torch.tensor(f - 1)
