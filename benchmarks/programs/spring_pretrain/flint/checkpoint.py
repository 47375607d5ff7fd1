import os

import torch.distributed.checkpoint as dcp


class CheckpointManager:
    def __init__(self, folder, model, optimizer):
        self.folder, self.model, self.optimizer = folder, model, optimizer

    def _path(self, step):
        return os.path.join(self.folder, f"step-{step}")

    def save(self, step, **extra):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                 "train": {"step": step, **extra}}
        dcp.save(state, checkpoint_id=self._path(step))

    def load(self, step, **extra):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                 "train": {"step": 0, **extra}}
        dcp.load(state, checkpoint_id=self._path(step))
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return state["train"]
