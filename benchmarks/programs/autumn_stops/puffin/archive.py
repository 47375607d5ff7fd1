"""Records that come from a slow archive. The first read of a reel has to wait for the mount."""
import time

import torch
from torch.utils.data import Dataset


class ReelDataset(Dataset):
    def __init__(self, reels, per_reel, dim=64, mount_seconds=None):
        self.reels = reels
        self.per_reel = per_reel
        self.dim = dim
        self.mount_seconds = mount_seconds or {}
        self._mounted = {}

    def __len__(self):
        return len(self.reels) * self.per_reel

    def _mount(self, reel):
        if reel not in self._mounted:
            time.sleep(self.mount_seconds.get(reel, 0.05))
            gen = torch.Generator().manual_seed(reel)
            x = torch.randn(self.per_reel, self.dim, generator=gen)
            teacher = torch.randn(self.dim, 3, generator=torch.Generator().manual_seed(0))
            self._mounted = {reel: (x, (x @ teacher).argmax(1))}
        return self._mounted[reel]

    def __getitem__(self, i):
        x, y = self._mount(self.reels[i // self.per_reel])
        return x[i % self.per_reel], y[i % self.per_reel]
