import os
import time


class ObjectBucket:
    """Stand-in for a remote object store: reads the file in parts at a limited rate."""

    def __init__(self, kib_per_second, part=64 * 1024):
        self.rate = kib_per_second * 1024
        self.part = part
        self.objects = {}

    def upload(self, path):
        began = time.monotonic()
        sent = 0
        with open(path, "rb") as fh:
            while chunk := fh.read(self.part):
                time.sleep(len(chunk) / self.rate)
                sent += len(chunk)
        self.objects[os.path.basename(path)] = sent
        return time.monotonic() - began
