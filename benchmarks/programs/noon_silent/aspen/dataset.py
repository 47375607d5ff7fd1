import random

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class CanopyPatches(Dataset):
    """Patches with random occlusion and noise; target is the clean centre."""

    def __init__(self, n, size=28, crop=24, seed=0):
        rng = np.random.RandomState(seed)
        yy, xx = np.mgrid[0:size, 0:size].astype(np.float32)
        self.images = np.zeros((n, 1, size, size), np.float32)
        for k in range(5):
            cy, cx = rng.rand(2, n, 1, 1) * size
            r = rng.rand(n, 1, 1) * 4 + 2
            self.images[:, 0] += np.exp(-((yy - cy) ** 2 + (xx - cx) ** 2) / (2 * r * r))
        self.size, self.crop = size, crop

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        dy, dx = np.random.randint(0, self.size - self.crop + 1, 2)
        clean = self.images[i][:, dy:dy + self.crop, dx:dx + self.crop].copy()
        if random.random() < 0.5:
            clean = clean[:, :, ::-1].copy()
        noisy = clean + np.random.randn(*clean.shape).astype(np.float32) * 0.4
        h, w = np.random.randint(3, 9, 2)
        y, x = np.random.randint(0, self.crop - 9, 2)
        noisy[:, y:y + h, x:x + w] = 0
        return torch.from_numpy(noisy), torch.from_numpy(clean)


class WorkerInit:
    def __init__(self, seed):
        self.seed = seed

    def __call__(self, worker_id):
        seed = self.seed + worker_id
        random.seed(seed)
        np.random.seed(seed)


def build_loader(n, batch_size, workers, seed):
    ds = CanopyPatches(n)
    sampler = DistributedSampler(ds, shuffle=True, seed=seed, drop_last=True)
    loader = DataLoader(ds, batch_size, sampler=sampler, num_workers=workers, drop_last=True,
                        worker_init_fn=WorkerInit(seed))
    return loader, sampler
