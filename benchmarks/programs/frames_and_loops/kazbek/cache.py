import threading
import time

import torch


def render(seed: int, size: int) -> torch.Tensor:
    """Stands in for decoding: a sum of a few random plane waves."""
    g = torch.Generator().manual_seed(seed)
    grid = torch.linspace(0, 6.28, size)
    out = torch.zeros(size, size)
    for _ in range(4):
        fx, fy, ph = (torch.rand(3, generator=g) * torch.tensor([3.0, 3.0, 6.28])).tolist()
        out += torch.sin(fx * grid[:, None] + fy * grid[None, :] + ph)
    return out


class DecodedCache:
    """Keeps decoded items; a warm-up thread fills it in the background."""

    def __init__(self, size: int, limit: int):
        self.size, self.limit = size, limit
        self.items: dict[int, torch.Tensor] = {}
        self.lock = threading.Lock()
        self.thread = None

    def get(self, seed: int) -> torch.Tensor:
        with self.lock:
            hit = self.items.get(seed)
        if hit is None:
            hit = render(seed, self.size)
            with self.lock:
                if len(self.items) < self.limit:
                    self.items[seed] = hit
        return hit

    def _fill(self, seeds, chunk):
        for at in range(0, len(seeds), chunk):
            with self.lock:
                for s in seeds[at : at + chunk]:
                    if s not in self.items and len(self.items) < self.limit:
                        self.items[s] = render(s, self.size)
                        time.sleep(0.002)

    def settle(self):
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def warm(self, seeds, chunk=400):
        self.thread = threading.Thread(target=self._fill, args=(list(seeds), chunk), daemon=True)
        self.thread.start()
