import glob
import json
import os
import queue
import threading

import torch


class Feed:
    """Reads this rank's shards in a thread and keeps a few batches ready."""

    def __init__(self, folder, rank, world, batch, depth):
        self.files = sorted(glob.glob(os.path.join(folder, "events-*.jsonl")))[rank::world]
        self.batch = batch
        self.ready = queue.Queue(maxsize=depth)
        self.halt = threading.Event()
        self.skipped = 0
        self.thread = threading.Thread(target=self._work, name="feed", daemon=True)

    def start(self):
        self.thread.start()
        return self

    def _lines(self):
        while not self.halt.is_set():
            for path in self.files:
                with open(path) as fh:
                    yield from fh

    @staticmethod
    def _parse(line):
        row = json.loads(line)
        return int(row["user"]), int(row["item"]), float(row["rating"])

    def _pack(self, rows):
        u, i, r = zip(*rows)
        return torch.tensor(u), torch.tensor(i), torch.tensor(r)

    def _offer(self, item):
        while not self.halt.is_set():
            try:
                return self.ready.put(item, timeout=0.2)
            except queue.Full:
                pass

    def _work(self):
        rows = []
        for line in self._lines():
            try:
                rows.append(self._parse(line))
            except (KeyError, TypeError, ValueError):
                self.skipped += 1
            if len(rows) == self.batch:
                self._offer(self._pack(rows))
                rows = []
            if self.halt.is_set():
                break

    def next(self):
        return self.ready.get()

    def stop(self):
        self.halt.set()
        self.thread.join(timeout=2)
