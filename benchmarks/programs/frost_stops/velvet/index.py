import threading
import time

import torch


class ShardIndex:
    """Row numbers of the shards on disk. ``rescan`` picks up shards that were added meanwhile."""

    def __init__(self, shards=8, rows=64):
        self.rows = rows
        self.table = list(range(shards))
        self._lock = threading.Lock()
        self._thread = None

    def locate(self, i):
        with self._lock:
            return self.table[i // self.rows], i % self.rows

    def rescan(self):
        self._thread = threading.Thread(target=self._scan, daemon=True)
        self._thread.start()

    def wait(self):
        if self._thread is not None:
            self._thread.join()

    def _scan(self):
        with self._lock:
            found = []
            for shard in self.table:
                time.sleep(0.15)
                found.append(shard)
            self.table = found

    def __len__(self):
        return len(self.table) * self.rows


class Waves(torch.utils.data.Dataset):
    def __init__(self, index, length=32):
        self.index = index
        self.t = torch.linspace(0, 6.28, length)

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        shard, row = self.index.locate(i)
        kind = (shard * 7 + row) % 3
        g = torch.Generator().manual_seed(shard * 1000 + row)
        x = torch.sin(self.t * (kind + 1)) + 0.3 * torch.randn(len(self.t), generator=g)
        return x, kind
