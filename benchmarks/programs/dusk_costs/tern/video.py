"""Episode videos and the decoder cache used by the dataset workers."""
import numpy as np


class EpisodeDecoder:
    """Stands for a container reader: opening decodes the key-frame index and frames."""

    def __init__(self, path, frames=24, size=64):
        self.path = path
        seed = int(path.rsplit("_", 1)[1].split(".")[0])
        rng = np.random.default_rng(seed)
        base = rng.integers(0, 256, (size, size, 3), dtype=np.uint8)
        self.frames = np.stack([np.roll(base, t * (1 + seed % 3), axis=1) for t in range(frames)])
        self.label = seed % 3

    def __len__(self):
        return len(self.frames)

    def clip(self, start, length):
        return self.frames[start:start + length]


class DecoderCache:
    """Keeps open decoders so that clips of one episode share the open cost."""

    def __init__(self):
        self._items = {}

    def get(self, path):
        decoder = self._items.get(path)
        if decoder is None:
            decoder = EpisodeDecoder(path)
            self._items[path] = decoder
        return decoder
