import threading
from collections import deque

import numpy as np
import torch

from shards import read_shard


class ShardFeeder:
    """Reads shards ahead of the training loop and hands out batches."""

    def __init__(self, paths, batch, depth=4, seed=0):
        self.paths = list(paths)
        self.batch = batch
        self.depth = depth
        self.rng = np.random.default_rng(seed)
        self.cond = threading.Condition()

    def _read_ahead(self, order):
        try:
            self._fill(order)
        except Exception as problem:
            self.problem = problem
        with self.cond:
            self.finished = True
            self.cond.notify_all()

    def _fill(self, order):
        for k in order:
            days = read_shard(self.paths[k])
            days = days[self.rng.permutation(len(days))]
            for start in range(0, len(days) - self.batch + 1, self.batch):
                block = torch.from_numpy(days[start:start + self.batch].copy())
                with self.cond:
                    while len(self.ready) >= self.depth:
                        self.cond.wait()
                    self.ready.append(block)
                    self.cond.notify_all()

    def __iter__(self):
        self.ready = deque()
        self.finished = False
        self.problem = None
        order = self.rng.permutation(len(self.paths)).tolist()
        thread = threading.Thread(target=self._read_ahead, args=(order,), name="read-ahead", daemon=True)
        thread.start()
        while True:
            with self.cond:
                while not self.ready and not self.finished:
                    self.cond.wait()
                if not self.ready:
                    break
                block = self.ready.popleft()
                self.cond.notify_all()
            yield block
        thread.join()
        if self.problem is not None:
            raise self.problem
