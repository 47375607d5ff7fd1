"""Thread-safe in-process telemetry: the training thread records, a reporter thread drains."""
import json
import logging
import os
import threading
import time
from collections import deque

log = logging.getLogger("telemetry")


class Recorder:
    def __init__(self, path, capacity=4096, spike_factor=6.0):
        self.path = path
        self.spike_factor = spike_factor
        self._lock = threading.Lock()
        self._rows = deque(maxlen=capacity)
        self._mean = None
        self.spikes = 0

    def record(self, step, **fields):
        row = {"step": step, "time": time.time(), **fields}
        with self._lock:
            self._rows.append(row)
            norm = fields.get("grad_norm")
            if norm is None:
                return
            spike = False
            if self._mean is not None and step > 20 and norm > self.spike_factor * self._mean:
                self.spikes += 1
                spike = True
            self._mean = norm if self._mean is None else 0.95 * self._mean + 0.05 * norm
        if spike:
            self._dump(f"spike_{step}")

    def snapshot(self, last=None):
        with self._lock:
            rows = list(self._rows)
        return rows if last is None else rows[-last:]

    def drain(self):
        with self._lock:
            rows, n = list(self._rows), len(self._rows)
            self._rows.clear()
        return rows, n

    def _dump(self, tag):
        """Black box: writes what led up to an event next to the regular log."""
        history = self.snapshot(last=64)
        with open(os.path.join(self.path, f"{tag}.json"), "w") as f:
            json.dump(history, f)
        log.warning("%s: %d rows written", tag, len(history))


class Reporter(threading.Thread):
    def __init__(self, recorder, every=1.0):
        super().__init__(daemon=True, name="reporter")
        self.recorder, self.every = recorder, every
        self._halt = threading.Event()

    def run(self):
        while not self._halt.wait(self.every):
            rows = self.recorder.snapshot(last=20)
            if rows:
                mean = sum(r["loss"] for r in rows) / len(rows)
                log.info("step %d  loss %.4f  spikes %d", rows[-1]["step"], mean, self.recorder.spikes)

    def close(self):
        self._halt.set()
        self.join()
