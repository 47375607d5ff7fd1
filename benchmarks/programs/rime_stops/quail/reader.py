import csv
import queue
import random
import threading

import torch


class ShardReader:
    """Streams batches from one CSV shard, a few batches ahead of the consumer."""

    def __init__(self, path, batch_size, depth=4, seed=0):
        self.path = path
        self.batch_size = batch_size
        self.seed = seed
        self.buffer = queue.Queue(maxsize=depth)
        self.thread = None

    def _fill(self, epoch):
        with open(self.path, newline="") as f:
            rows = list(csv.reader(f))[1:]
        random.Random(self.seed * 1000 + epoch).shuffle(rows)
        for i in range(0, len(rows) - self.batch_size + 1, self.batch_size):
            block = torch.tensor([[float(v) for v in r] for r in rows[i:i + self.batch_size]])
            self.buffer.put((block[:, :-1], block[:, -1:]))
        self.buffer.put(None)

    def epoch(self, epoch):
        self.thread = threading.Thread(target=self._fill, args=(epoch,), daemon=True)
        self.thread.start()
        while True:
            item = self.buffer.get()
            if item is None:
                break
            yield item
        self.thread.join()
