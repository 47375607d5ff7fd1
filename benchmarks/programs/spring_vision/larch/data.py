import numpy as np
import torch
from torch.utils.data import Dataset


def make_annotations(n, seed, num_classes=4, max_boxes=12):
    rng = np.random.default_rng(seed)
    annos = []
    for _ in range(n):
        k = int(rng.integers(1, max_boxes + 1))
        centre = rng.uniform(0.15, 0.85, size=(k, 2))
        size = rng.uniform(0.08, 0.25, size=(k, 2))
        boxes = np.concatenate([centre, size], axis=1)
        annos.append((boxes.round(6).tolist(), rng.integers(0, num_classes, size=k).tolist()))
    return annos


class GridDetectionDataset(Dataset):
    """Renders synthetic scenes and encodes their boxes on an SxS grid."""

    def __init__(self, store, image_size=48, grid=6, num_classes=4, seed=0):
        self.store = store
        self.image_size = image_size
        self.grid = grid
        self.num_classes = num_classes
        self.seed = seed
        self.epoch = 0

    def __len__(self):
        return len(self.store)

    def __getitem__(self, index):
        boxes, classes, seen = self.store.get(index)
        rng = np.random.default_rng((self.seed, self.epoch, index))
        jitter = min(0.01 * seen, 0.05)
        s = self.image_size
        img = rng.normal(0, 0.1, size=(3, s, s)).astype(np.float32)
        target = np.zeros((5 + self.num_classes, self.grid, self.grid), dtype=np.float32)
        for (cx, cy, w, h), c in zip(boxes, classes):
            cx = float(np.clip(cx + rng.uniform(-jitter, jitter), 0.05, 0.95))
            cy = float(np.clip(cy + rng.uniform(-jitter, jitter), 0.05, 0.95))
            x0, x1 = int((cx - w / 2) * s), int((cx + w / 2) * s) + 1
            y0, y1 = int((cy - h / 2) * s), int((cy + h / 2) * s) + 1
            img[c % 3, max(y0, 0):y1, max(x0, 0):x1] += 0.5 + 0.25 * c
            gx, gy = int(cx * self.grid), int(cy * self.grid)
            target[:5, gy, gx] = (1.0, cx * self.grid - gx, cy * self.grid - gy, w, h)
            target[5:, gy, gx] = 0
            target[5 + c, gy, gx] = 1.0
        return torch.from_numpy(img), torch.from_numpy(target), index
