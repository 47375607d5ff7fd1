"""Event log with a background sender (one sender per node)."""
import gzip
import json
import os
import threading
import time
from pathlib import Path


class Telemetry:
    def __init__(self, folder, rank, sender, min_interval=1.5):
        self.folder = Path(folder)
        self.rank = rank
        self.sender = sender
        self.min_interval = min_interval
        self._events = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stop = False
        self._thread = None
        self._batches = 0
        os.register_at_fork(after_in_child=self._in_child)
        if sender:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._thread = threading.Thread(target=self._loop, name="telemetry", daemon=True)
            self._thread.start()

    def event(self, name, **fields):
        with self._lock:
            self._events.append({"t": time.time(), "pid": os.getpid(), "name": name, **fields})

    def _in_child(self):
        self._lock = threading.Lock()
        self._events = []
        self._thread = None

    def flush(self):
        self._wake.set()

    def _loop(self):
        while not self._stop:
            self._wake.wait(timeout=5.0)
            self._wake.clear()
            self._push()

    def _push(self):
        with self._lock:
            events, self._events = self._events, []
        if events:
            self._write(events)

    def _write(self, events):
        # the collector accepts one batch per interval
        path = self.folder / f"batch-{self.rank}-{self._batches}.json.gz"
        with gzip.open(path, "wt") as fh:
            json.dump(events, fh)
        time.sleep(self.min_interval)
        self._batches += 1

    def close(self):
        if self._thread is None:
            return
        self._stop = True
        self._wake.set()
        self._thread.join()
        self._push()
