"""Streams raw samples from one reader and hands each rank its share of every global batch."""
import numpy as np
import torch
import torch.distributed as dist


class RawStream:
    """Endless raw samples: a byte image, a crop box and a class."""

    def __init__(self, seed, size=64, classes=10, pool=400):
        self.rng = np.random.default_rng(seed)
        proto = np.random.default_rng(3).integers(40, 216, (classes, 8, 8, 3))
        self.store = []
        for i in range(pool):
            image = np.kron(proto[i % classes], np.ones((size // 8, size // 8, 1)))
            image = np.clip(image + self.rng.normal(0, 25, image.shape), 0, 255).astype(np.uint8)
            self.store.append((image, i % classes))

    def take(self, n):
        out = []
        for i in self.rng.integers(len(self.store), size=n).tolist():
            image, label = self.store[i]
            out.append({"image": image, "box": self.rng.integers(0, 9, 2).tolist(), "label": label})
        return out


class Encoder:
    """Crops, resizes, blurs and normalises the images of raw samples."""

    def __init__(self, out=32, taps=7):
        self.out = out
        k = np.exp(-0.5 * (np.arange(taps) - taps // 2) ** 2 / 0.8)
        self.kernel = k / k.sum()

    def one(self, sample):
        y, x = sample["box"]
        img = sample["image"][y:y + 56, x:x + 56].astype(np.float64) / 255.0
        for axis in (0, 1):
            img = np.apply_along_axis(np.convolve, axis, img, self.kernel, mode="same")
        pick = np.linspace(0, img.shape[0] - 1, self.out).round().astype(int)
        img = img[pick][:, pick]
        return torch.from_numpy(((img - 0.5) / 0.25).transpose(2, 0, 1).astype(np.float32))

    def __call__(self, samples):
        return torch.stack([self.one(s) for s in samples]), torch.tensor([s["label"] for s in samples])


class Dispatcher:
    """Rank 0 iterates the stream; every rank gets one batch per step."""

    def __init__(self, batch, seed):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.batch = batch
        self.encode = Encoder()
        self.stream = RawStream(seed) if self.rank == 0 else None

    def __iter__(self):
        while True:
            shares = None
            if self.rank == 0:
                shares = [self.encode(self.stream.take(self.batch)) for _ in range(self.world)]
            mine = [None]
            dist.scatter_object_list(mine, shares, src=0)
            yield mine[0]
