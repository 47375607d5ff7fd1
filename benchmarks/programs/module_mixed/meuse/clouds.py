import numpy as np
import torch
from torch.utils.data import Dataset

from augment import Compose, drop_points, jitter, rotate, scale


class PointClouds(Dataset):
    def __init__(self, n=320, points=64, seed=0, train=True):
        self.n, self.points, self.seed = n, points, seed
        self.train = train
        self.rng = np.random.default_rng(seed)
        self.augment = Compose(rotate, scale, jitter, drop_points)

    def __len__(self):
        return self.n

    def _raw(self, i):
        r = np.random.default_rng((self.seed, 17, i))
        kind = i % 3
        u = r.uniform(-1, 1, (self.points, 3))
        if kind == 0:
            u /= np.linalg.norm(u, axis=1, keepdims=True)
        elif kind == 1:
            u[:, 2] = 0.1 * u[:, 2]
        return u, kind

    def __getitem__(self, i):
        cloud, kind = self._raw(i)
        if self.train:
            cloud = self.augment(cloud, self.rng)
        return torch.from_numpy(cloud.astype(np.float32)), kind
