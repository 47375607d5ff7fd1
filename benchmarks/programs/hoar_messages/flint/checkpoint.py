import os
import tempfile

import torch
import torch.distributed as dist


class BestKeeper:
    """Keeps the best weights seen so far (by validation loss)."""

    def __init__(self, model, directory=None, min_delta=1e-4):
        self.model = model
        self.best = float("inf")
        self.min_delta = min_delta
        self.dir = directory or tempfile.gettempdir()
        self.saved = 0

    def update(self, epoch, value):
        if value < self.best - self.min_delta:
            self.best = value
            self._save(epoch)
            return True
        return False

    def _save(self, epoch):
        rng = [None] * dist.get_world_size()
        dist.all_gather_object(rng, torch.get_rng_state().sum().item())
        if dist.get_rank() == 0:
            path = os.path.join(self.dir, f"best-{os.getpid()}.pt")
            torch.save({"model": self.model.state_dict(), "epoch": epoch, "rng": rng}, path)
            os.replace(path, path)
        self.saved += 1
