import collections
import json
import threading
import time


class Telemetry:
    """Counts events and ships them to the collector from a background thread."""

    def __init__(self, path, round_trip=1.0):
        self.path, self.round_trip = path, round_trip
        self.counts = collections.Counter()
        self.lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="telemetry", daemon=True)
        self._thread.start()

    def count(self, key, n=1):
        with self.lock:
            self.counts[key] += n

    def _ship(self, counts):
        with open(self.path, "a") as f:
            f.write(json.dumps({"t": time.time(), **counts}) + "\n")
        time.sleep(self.round_trip)

    def _loop(self):
        while not self._stop.is_set():
            with self.lock:
                self._ship(dict(self.counts))
                self.counts.clear()

    def close(self):
        self._stop.set()
        self._thread.join()
        self._ship(dict(self.counts))


class NullTelemetry:
    def count(self, key, n=1):
        pass

    def close(self):
        pass
