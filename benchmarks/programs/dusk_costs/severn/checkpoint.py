"""Checkpoints written by a background thread from a private copy of the weights."""
import os
import threading

import torch


class ThreadedCheckpointer:
    def __init__(self, folder, keep=2):
        self.folder, self.keep = folder, keep
        self.thread, self.written = None, []

    @staticmethod
    def _snapshot(obj):
        if isinstance(obj, torch.Tensor):
            return obj.detach().clone()
        if isinstance(obj, dict):
            return {k: ThreadedCheckpointer._snapshot(v) for k, v in obj.items()}
        if isinstance(obj, (list, tuple)):
            return type(obj)(ThreadedCheckpointer._snapshot(v) for v in obj)
        return obj

    def save(self, step, **parts):
        self.wait()
        state = self._snapshot({k: v.state_dict() for k, v in parts.items()})
        self.thread = threading.Thread(target=self._write, args=(step, state))
        self.thread.start()

    def _write(self, step, state):
        path = os.path.join(self.folder, f"step{step:06d}.pt")
        torch.save(state, path + ".tmp")
        os.replace(path + ".tmp", path)
        self.written.append(path)
        while len(self.written) > self.keep:
            os.remove(self.written.pop(0))

    def wait(self):
        if self.thread is not None:
            self.thread.join()
            self.thread = None
