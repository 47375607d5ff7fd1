"""Small in-process tile cache with periodic spilling to disk."""
import logging
import os
import threading
import time
from collections import OrderedDict
from pathlib import Path

import torch

log = logging.getLogger("tiles")


class TileCache:
    def __init__(self, root, capacity, spill_every):
        self.root = Path(root)
        self.capacity = capacity
        self.spill_every = spill_every
        self._tiles = OrderedDict()
        self._lock = threading.Lock()
        os.register_at_fork(
            before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._lock.release
        )
        self._stop = threading.Event()
        self._thread = None

    def start(self):
        self._thread = threading.Thread(target=self._spill_loop, name="tile-spill", daemon=True)
        self._thread.start()

    def get(self, key, make):
        with self._lock:
            if key in self._tiles:
                self._tiles.move_to_end(key)
                return self._tiles[key]
        tile = make(key)
        with self._lock:
            self._tiles[key] = tile
            while len(self._tiles) > self.capacity:
                self._tiles.popitem(last=False)
        return tile

    def _spill_loop(self):
        while not self._stop.wait(self.spill_every):
            with self._lock:
                for key, tile in self._tiles.items():
                    torch.save(tile, self.root / f"tile-{key}.pt")
                    time.sleep(0.02)

    def stop(self):
        self._stop.set()
        self._thread.join()
