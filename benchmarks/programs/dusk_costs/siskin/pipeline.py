"""Host-side input pipeline: simulated rendering in a background thread."""
import queue
import threading

import numpy as np
import torch


class Renderer:
    """Produces (image, depth) pairs of simple procedural scenes."""

    def __init__(self, batch, size, seed, spheres=4):
        self.batch, self.size, self.spheres = batch, size, spheres
        self.rng = np.random.default_rng(seed)
        ax = np.linspace(-1, 1, size, dtype=np.float32)
        self.xx, self.yy = np.meshgrid(ax, ax)

    def next_batch(self):
        b, n = self.batch, self.size
        image = np.full((b, 3, n, n), 0.1, dtype=np.float32)
        depth = np.ones((b, n, n), dtype=np.float32)
        for _ in range(self.spheres):
            c = self.rng.uniform(-0.8, 0.8, (b, 2, 1, 1)).astype(np.float32)
            r = self.rng.uniform(0.15, 0.5, (b, 1, 1)).astype(np.float32)
            colour = self.rng.uniform(0.3, 1.0, (b, 3, 1, 1)).astype(np.float32)
            h2 = r ** 2 - (self.xx - c[:, 0]) ** 2 - (self.yy - c[:, 1]) ** 2
            z = np.where(h2 > 0, 1 - np.sqrt(np.maximum(h2, 0)), 1.0)
            front = z < depth
            depth = np.where(front, z, depth)
            image = np.where(front[:, None], colour * (1.2 - z)[:, None], image)
        image += self.rng.normal(0, 0.02, image.shape).astype(np.float32)
        return torch.from_numpy(image), torch.from_numpy(depth.astype(np.float32))[:, None]


class Prefetcher:
    """Runs the renderer ahead of the training loop."""

    def __init__(self, source, total, depth=8):
        self.source, self.total = source, total
        self.queue = queue.Queue(maxsize=depth)
        self.thread = threading.Thread(target=self._fill, daemon=True)
        self.thread.start()

    def _fill(self):
        for _ in range(self.total):
            self.queue.put(self.source.next_batch())
        self.queue.put(None)

    def __iter__(self):
        while True:
            item = self.queue.get()
            if item is None:
                return
            yield item
