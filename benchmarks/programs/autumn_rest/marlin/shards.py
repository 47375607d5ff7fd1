"""Node-local checkpoints: every rank keeps its own files on its own disk."""
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import torch


class LocalDisk:
    def __init__(self, root, rank, bandwidth_mb):
        self.dir = os.path.join(root, f"rank{rank}")
        os.makedirs(self.dir, exist_ok=True)
        self.bandwidth = bandwidth_mb * 1e6
        self.halted = threading.Event()

    def write(self, name, payload):
        tmp = os.path.join(self.dir, name + ".tmp")
        torch.save(payload, tmp)
        if self.halted.wait(os.path.getsize(tmp) / self.bandwidth):
            return
        os.replace(tmp, os.path.join(self.dir, name))

    def latest(self):
        steps = [int(m.group(1)) for m in (re.fullmatch(r"step(\d+)\.pt", f) for f in os.listdir(self.dir)) if m]
        return max(steps, default=0)

    def read(self, step):
        return torch.load(os.path.join(self.dir, f"step{step}.pt"), weights_only=False)


class Checkpointer:
    def __init__(self, disk):
        self.disk = disk
        self.pool = ThreadPoolExecutor(max_workers=1)
        self.pending = []

    def save(self, step, payload):
        self.pending = [f for f in self.pending if not f.done()]
        if len(self.pending) >= 2:
            self.pending[0].result()
        self.pending.append(self.pool.submit(self.disk.write, f"step{step}.pt", payload))

    def close(self, drain):
        """With drain=False the machine is about to go: whatever is not on disk by now is lost."""
        if not drain:
            self.disk.halted.set()
        self.pool.shutdown(wait=True, cancel_futures=not drain)
        self.disk.halted.clear()
