import zlib

import numpy as np
import torch
from torch.utils.data import Dataset


class Tiles(Dataset):
    """Compressed single-band tiles with one land-use label each."""

    def __init__(self, telemetry, n=1600, size=32, classes=4, seed=0):
        rng = np.random.default_rng(seed)
        self.telemetry = telemetry
        self.size = size
        self.labels = rng.integers(0, classes, n)
        grid = np.linspace(0, 1, size)
        self.blobs = []
        for k in self.labels:
            wave = np.sin(2 * np.pi * (k + 1) * (grid[:, None] + rng.random()) + grid[None, :])
            tile = np.clip((wave + 1) * 90 + rng.normal(0, 25, (size, size)), 0, 255)
            self.blobs.append(zlib.compress(tile.astype(np.uint8).tobytes()))

    def __len__(self):
        return len(self.blobs)

    def __getitem__(self, i):
        raw = np.frombuffer(zlib.decompress(self.blobs[i]), np.uint8).reshape(self.size, self.size)
        self.telemetry.count("decoded")
        x = torch.from_numpy(raw.astype(np.float32) / 255.0 - 0.5)
        return x.unsqueeze(0), int(self.labels[i])
