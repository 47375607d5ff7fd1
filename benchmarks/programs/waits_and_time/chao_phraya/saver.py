import copy
import logging
import os
import queue
import threading
import time

import torch

log = logging.getLogger("saver")


def to_host(obj):
    if isinstance(obj, torch.Tensor):
        return obj.detach().clone()
    if isinstance(obj, dict):
        return {k: to_host(v) for k, v in obj.items()}
    if isinstance(obj, (list, tuple)):
        return type(obj)(to_host(v) for v in obj)
    return copy.copy(obj)


class BackgroundSaver:
    """The training thread pays for a copy only; a thread writes to the (slow) disk.
    Checkpoints are dealt out over the ranks, since all hold the same weights."""

    def __init__(self, folder, rank, world, seconds_per_file=2.5):
        self.folder, self.rank, self.world = folder, rank, world
        self.seconds = seconds_per_file
        self.jobs = queue.Queue()
        self.count = 0
        self.thread = threading.Thread(target=self._loop, name="saver")
        self.thread.start()

    def submit(self, step, state):
        turn = self.count % self.world
        self.count += 1
        if turn == self.rank:
            self.jobs.put((step, to_host(state)))

    def _loop(self):
        while True:
            job = self.jobs.get()
            if job is None:
                return
            step, state = job
            path = os.path.join(self.folder, f"step_{step:05d}.pt")
            torch.save(state, path + ".part")
            time.sleep(self.seconds)
            os.replace(path + ".part", path)
            log.info("wrote %s", os.path.basename(path))

    def drain(self):
        self.jobs.put(None)
        self.thread.join()
