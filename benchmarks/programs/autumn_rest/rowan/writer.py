import copy
import os
import queue
import threading
import time

import torch


class BackgroundWriter:
    """Writes checkpoints from a worker thread, so that training can go on.

    The target is shared storage; ``rate_mb`` keeps us under the quota of the filer.
    """

    def __init__(self, folder, rate_mb=20.0):
        self.folder = folder
        self.rate = rate_mb * 1e6
        self.jobs = queue.Queue(maxsize=2)
        self.error = None
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def submit(self, step, state):
        if self.error is not None:
            raise self.error
        self.jobs.put((step, flatten(state)))

    def wait(self):
        self.jobs.join()
        if self.error is not None:
            raise self.error

    def _work(self):
        while True:
            step, entries = self.jobs.get()
            try:
                self._write(step, entries)
            except Exception as e:
                self.error = e
            finally:
                self.jobs.task_done()

    def _write(self, step, entries):
        target = os.path.join(self.folder, f"step-{step:06d}")
        tmp = target + ".part"
        os.makedirs(tmp, exist_ok=True)
        index = {}
        for i, (key, value) in enumerate(entries):
            name = f"{i:05d}.pt"
            torch.save(value, os.path.join(tmp, name))
            index[key] = name
            if torch.is_tensor(value):
                time.sleep(value.numel() * value.element_size() / self.rate)
        torch.save(index, os.path.join(tmp, "index.pt"))
        os.rename(tmp, target)


def flatten(state, prefix=()):
    entries = []
    for key, value in state.items():
        if isinstance(value, dict) and value:
            entries.extend(flatten(value, prefix + (key,)))
        else:
            if torch.is_tensor(value):
                value = value.detach().clone()
            entries.append((prefix + (key,), copy.deepcopy(value)))
    return entries


def read(folder):
    index = torch.load(os.path.join(folder, "index.pt"), weights_only=False)
    state = {}
    for key, name in index.items():
        node = state
        for part in key[:-1]:
            node = node.setdefault(part, {})
        node[key[-1]] = torch.load(os.path.join(folder, name), weights_only=False)
    return state


def latest(folder):
    done = sorted(d for d in os.listdir(folder) if d.startswith("step-") and not d.endswith(".part"))
    return os.path.join(folder, done[-1]) if done else None
