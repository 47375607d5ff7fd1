import random

import numpy as np
import torch
from torch.utils.data import Dataset


class AugmentedPairs(Dataset):
    classes = 4

    def __init__(self, n, seed, size=16, crop=12):
        rng = np.random.default_rng(seed)
        self.size, self.crop = size, crop
        self.y = torch.from_numpy(rng.integers(0, self.classes, n))
        yy, xx = np.mgrid[0:size, 0:size]
        imgs = []
        for c in self.y.tolist():
            f = 0.5 + 0.35 * c
            phase, ang = rng.uniform(0, 6.28), rng.uniform(-0.3, 0.3)
            u = xx * np.cos(ang) + yy * np.sin(ang)
            imgs.append(np.sin(f * u + phase) + 0.3 * rng.normal(size=(size, size)))
        self.img = np.stack(imgs).astype(np.float32)
        o = (size - crop) // 2
        self.clean = torch.from_numpy(self.img[:, None, o:o + crop, o:o + crop].copy())

    def __len__(self):
        return len(self.y)

    def _view(self, im):
        t, l = np.random.randint(0, self.size - self.crop + 1, 2)
        v = im[t:t + self.crop, l:l + self.crop]
        if random.random() < 0.5:
            v = v[::-1]
        v = v * np.random.uniform(0.6, 1.4) + np.random.normal(0, 0.2, v.shape)
        return torch.from_numpy(np.ascontiguousarray(v, dtype=np.float32))[None]

    def __getitem__(self, i):
        return self._view(self.img[i]), self._view(self.img[i])
