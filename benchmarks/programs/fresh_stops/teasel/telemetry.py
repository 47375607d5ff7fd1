"""Counters that anybody may bump, and a thread that writes them out."""
import json
import os
import threading
import time
import zlib


class Counters:
    def __init__(self):
        self.lock = threading.Lock()
        self.values = {}
        os.register_at_fork(after_in_child=self.fresh_lock)

    def fresh_lock(self):
        self.lock = threading.Lock()

    def bump(self, key, by=1):
        with self.lock:
            self.values[key] = self.values.get(key, 0) + by


COUNTERS = Counters()


class Writer(threading.Thread):
    """Appends the counters, packed, to a file. Packing is done in small steps so as to leave the processor to training."""

    def __init__(self, path, counters=COUNTERS, every=0.02):
        super().__init__(daemon=True, name="telemetry")
        self.path, self.counters, self.every = path, counters, every
        self.quit = threading.Event()

    def write_once(self):
        with self.counters.lock:
            values = dict(self.counters.values)
        packer = zlib.compressobj(9)
        with open(self.path, "ab") as f:
            for chunk in range(8):
                f.write(packer.compress(json.dumps([chunk, values]).encode() * 40))
                f.flush()
                time.sleep(0.04)
            f.write(packer.flush())

    def run(self):
        while not self.quit.is_set():
            self.write_once()
            time.sleep(self.every)

    def stop(self):
        self.quit.set()
        self.join()
