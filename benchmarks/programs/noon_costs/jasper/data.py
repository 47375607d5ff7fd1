import io
from collections import OrderedDict

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset


class LRUCache:
    def __init__(self, max_bytes):
        self.max_bytes = max_bytes
        self.used = 0
        self.items = OrderedDict()

    def get(self, key):
        if key in self.items:
            self.items.move_to_end(key)
            return self.items[key]
        return None

    def put(self, key, value):
        self.items[key] = value
        self.used += value.nbytes
        while self.used > self.max_bytes:
            _, old = self.items.popitem(last=False)
            self.used -= old.nbytes


class EncodedImages(Dataset):
    """PNG images held encoded; decoded frames go through a size-limited cache."""

    def __init__(self, n=600, size=160, crop=48, cache_mb=24, seed=0):
        rng = np.random.default_rng(seed)
        axis = np.linspace(0, 6.28, size)
        self.blobs, self.labels = [], []
        for i in range(n):
            label = int(rng.integers(0, 8))
            wave = np.sin((label + 1) * axis[:, None] + rng.random() * 6) * np.cos((label + 2) * axis[None])
            rgb = np.stack([wave, wave.T, wave * 0.5], -1) * 60 + 128 + rng.normal(0, 8, (size, size, 3))
            buf = io.BytesIO()
            Image.fromarray(rgb.clip(0, 255).astype("uint8")).save(buf, "PNG", compress_level=1)
            self.blobs.append(buf.getvalue())
            self.labels.append(label)
        self.crop = crop
        self.cache = LRUCache(cache_mb * 2 ** 20)

    def __len__(self):
        return len(self.blobs)

    def decode(self, i):
        image = self.cache.get(i)
        if image is None:
            image = np.asarray(Image.open(io.BytesIO(self.blobs[i])).convert("RGB")).copy()
            self.cache.put(i, image)
        return image

    def __getitem__(self, i):
        image = self.decode(i)
        top, left = torch.randint(0, image.shape[0] - self.crop, (2,)).tolist()
        patch = image[top:top + self.crop, left:left + self.crop]
        return torch.from_numpy(patch.copy()).permute(2, 0, 1).float().div_(127.5).sub_(1), self.labels[i]
