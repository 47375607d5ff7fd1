"""Publishing of expensive artifacts through the rendezvous store."""
import io
import logging
import time
from datetime import timedelta

import torch

log = logging.getLogger("artifacts")


class Artifacts:
    def __init__(self, store, owner, deadline=600.0):
        self.store, self.owner, self.deadline = store, owner, deadline

    def publish(self, name, value):
        buf = io.BytesIO()
        torch.save(value, buf)
        self.store.set(f"artifact/{name}", buf.getvalue())

    def progress(self, name, fraction):
        self.store.set(f"artifact/{name}/progress", f"{fraction:.3f}")

    def fetch(self, name):
        """Waits in short slices so that the log keeps showing how far the owner is."""
        key, tries, start = f"artifact/{name}", 0, time.time()
        while True:
            try:
                self.store.wait([key], timedelta(seconds=1.5))
                break
            except RuntimeError:
                tries += 1
                if time.time() - start > self.deadline:
                    raise
                note = f"{key}/progress"
                done = float(self.store.get(note)) if self.store.check([note]) else 0.0
                log.info("%s: not there yet, try %d, owner reports %.0f%%", name, tries, 100 * done)
        return torch.load(io.BytesIO(self.store.get(key)))
