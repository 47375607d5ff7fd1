import os

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


class CheckpointManager:
    def __init__(self, folder, model, optimizer):
        self.folder, self.model, self.optimizer = folder, model, optimizer

    def _path(self, step):
        return os.path.join(self.folder, f"step-{step}")

    def save(self, step, **extra):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer, "train": {"step": step, **extra}}
        dcp.save(state, checkpoint_id=self._path(step))

    def load(self, step, **extra):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer, "train": {"step": 0, **extra}}
        dcp.load(state, checkpoint_id=self._path(step))
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"],
                       optim_state_dict=state["optimizer"])
        return state["train"]
