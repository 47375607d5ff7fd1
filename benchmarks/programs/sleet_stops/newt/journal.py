import collections
import gzip
import json
import os
import threading


class Journal:
    """Counts and records of a run, written out by a thread."""

    def __init__(self, path):
        self.path = path
        self.counts = collections.Counter()
        self.rows = []
        self.lock = threading.Lock()
        self.wake = threading.Event()
        self.begun = threading.Event()
        self.thread = None

    def count(self, key, n=1):
        with self.lock:
            self.counts[key] += n

    def row(self, **kw):
        with self.lock:
            self.rows.append(kw)

    def start(self):
        self.thread = threading.Thread(target=self._loop, name="journal", daemon=True)
        self.thread.start()

    def _loop(self):
        while True:
            self.wake.wait()
            self.wake.clear()
            with self.lock:
                self.begun.set()
                self._write()

    def _write(self):
        text = json.dumps({"counts": dict(self.counts), "rows": self.rows})
        with open(self.path + ".part", "wb") as f:
            f.write(gzip.compress(text.encode(), 9))
            f.flush()
            os.fsync(f.fileno())
        os.replace(self.path + ".part", self.path)

    def sync_soon(self):
        """Ask for a write; back as soon as the thread is at it."""
        if self.thread is not None:
            self.begun.clear()
            self.wake.set()
            self.begun.wait()
