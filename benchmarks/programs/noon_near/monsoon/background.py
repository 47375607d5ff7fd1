import json
import queue
import threading
import traceback
from collections import deque


class MetricWriter:
    """Writes records from a thread; the queue holds a fixed number and is emptied at close."""

    def __init__(self, path, capacity=64):
        self.queue = queue.Queue(maxsize=capacity)
        self.path = path
        self.written = 0
        self.thread = threading.Thread(target=self._drain, name="metrics", daemon=True)
        self.thread.start()

    def _drain(self):
        with open(self.path, "w") as f:
            while True:
                record = self.queue.get()
                if record is None:
                    return
                f.write(json.dumps(record) + "\n")
                self.written += 1

    def put(self, **record):
        self.queue.put(record)

    def close(self):
        self.queue.put(None)
        self.thread.join()


class Prefetcher:
    """Prepares the following batches in a thread, at most `depth` ahead."""

    def __init__(self, make, steps, depth=3):
        self.queue = queue.Queue(maxsize=depth)
        self.make, self.steps = make, steps
        self.notes = deque(maxlen=50)
        self.failures = 0
        self.thread = threading.Thread(target=self._work, name="prefetch", daemon=True)
        self.thread.start()

    def _work(self):
        made, draw = 0, 0
        while made < self.steps:
            try:
                batch = self.make(draw)
            except (ValueError, FloatingPointError):
                self.failures += 1
                self.notes.append(traceback.format_exc(limit=3))
            else:
                self.queue.put(batch)
                made += 1
            draw += 1

    def __iter__(self):
        for _ in range(self.steps):
            yield self.queue.get()
        self.thread.join()
