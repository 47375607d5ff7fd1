import os
import queue
import threading

import torch


class BackgroundSaver:
    """Rank 0 writes copies of the state in a thread; the file appears under its name when it is complete."""

    def __init__(self, root):
        self.root, self.jobs = root, queue.Queue(maxsize=2)
        self.written = []
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def submit(self, step, state):
        copy = {k: v.detach().clone() for k, v in state.items()}
        self.jobs.put((step, copy))

    def _work(self):
        while True:
            job = self.jobs.get()
            if job is None:
                return
            step, state = job
            path = os.path.join(self.root, f"step{step}.pt")
            torch.save(state, path + ".tmp")
            os.replace(path + ".tmp", path)
            self.written.append(path)

    def close(self):
        self.jobs.put(None)
        self.thread.join()
        return self.written
