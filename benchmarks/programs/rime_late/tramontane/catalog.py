"""Catalogue of item features in the memory of each process."""
import os
import threading
import time

import torch

_guard = threading.Lock()
_features = {}


def _load_part(part, size, dim):
    gen = torch.Generator().manual_seed(1000 + part)
    time.sleep(0.4)  # object store latency
    return {part * size + i: row for i, row in enumerate(torch.randn(size, dim, generator=gen))}


def fill(parts, size, dim):
    for part in range(parts):
        loaded = _load_part(part, size, dim)
        with _guard:
            _features.update(loaded)


def features(item):
    with _guard:
        return _features[item]


class Snapshot(threading.Thread):
    """Writes the whole catalogue for the serving team; no part may change while it runs."""

    def __init__(self, folder, part_size):
        super().__init__(name="catalog-snapshot", daemon=True)
        self.folder, self.part_size = folder, part_size
        self.begun = threading.Event()

    def run(self):
        os.makedirs(self.folder, exist_ok=True)
        with _guard:
            self.begun.set()
            items = sorted(_features)
            for start in range(0, len(items), self.part_size):
                rows = torch.stack([_features[i] for i in items[start:start + self.part_size]])
                torch.save(rows, os.path.join(self.folder, f"items-{start:06d}.pt"))
                time.sleep(0.15)  # upload
