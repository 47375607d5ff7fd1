import numpy as np
import torch
from torch.utils.data import Dataset


class ScanSlices(Dataset):
    """Renders 192x192 slices, returns a random 96x96 window of each."""

    def __init__(self, n, size=192, crop=96, seed=0):
        self.n, self.size, self.crop, self.seed = n, size, crop, seed
        self.store = {}

    def __len__(self):
        return self.n

    def _render(self, index):
        rng = np.random.default_rng((self.seed, index))
        yy, xx = np.mgrid[0:self.size, 0:self.size].astype(np.float32)
        img = rng.normal(0, 0.3, (self.size, self.size)).astype(np.float32)
        mask = np.zeros((self.size, self.size), np.uint8)
        for _ in range(6):
            cy, cx, r = rng.uniform(20, self.size - 20, 2).tolist() + [rng.uniform(8, 22)]
            inside = (yy - cy) ** 2 + (xx - cx) ** 2 < r * r
            img[inside] += 1.0
            mask[inside] = 1
        return img, mask

    def _load(self, index, top, left):
        key = (index, top, left)
        if key not in self.store:
            self.store[key] = self._render(index)
        img, mask = self.store[key]
        return img[top:top + self.crop, left:left + self.crop], mask[top:top + self.crop, left:left + self.crop]

    def __getitem__(self, index):
        top, left = torch.randint(0, self.size - self.crop, (2,)).tolist()
        img, mask = self._load(index, top, left)
        return torch.from_numpy(img.copy()).unsqueeze(0), torch.from_numpy(mask.copy()).float().unsqueeze(0)
