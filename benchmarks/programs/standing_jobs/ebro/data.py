import numpy as np
import torch
from torch.utils.data import Dataset


class Records(Dataset):
    """Serialized float records; some were cut short by the exporter and are padded."""

    def __init__(self, n, width, telemetry, seed=0):
        rng = np.random.default_rng(seed)
        self.width = width
        self.labels = rng.integers(0, 4, size=n)
        means = rng.normal(size=(4, width)).astype(np.float32) * 0.6
        values = means[self.labels] + rng.normal(size=(n, width)).astype(np.float32)
        self.blobs = [v.astype(np.float32).tobytes() for v in values]
        for i in rng.choice(n, size=n // 12, replace=False):
            self.blobs[i] = self.blobs[i][: 4 * (width - 3)]
        self.telemetry = telemetry

    def __len__(self):
        return len(self.blobs)

    def __getitem__(self, i):
        raw = np.frombuffer(self.blobs[i], dtype=np.float32)
        if raw.size < self.width:
            self.telemetry.event("short_record", index=int(i), size=int(raw.size))
            raw = np.pad(raw, (0, self.width - raw.size))
        return torch.from_numpy(raw.copy()), int(self.labels[i])
