"""Sharded checkpoints in numbered step folders."""
import os
import re

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


class CheckpointManager:
    def __init__(self, folder, model, optimizer, scheduler, stream):
        self.folder = folder
        self.model, self.optimizer = model, optimizer
        self.scheduler, self.stream = scheduler, stream

    def latest(self):
        steps = [int(m.group(1)) for n in os.listdir(self.folder) if (m := re.fullmatch(r"step_(\d+)", n))]
        return max(steps, default=None)

    def _path(self, step):
        return os.path.join(self.folder, f"step_{step}")

    def _app_state(self):
        # materializes the moments of a fresh optimizer, so that there is something to load into
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def save(self, step):
        extra = {"scheduler": self.scheduler.state_dict(), "stream": self.stream.state_dict(), "step": step}
        dcp.save({**self._app_state(), "extra": extra}, checkpoint_id=self._path(step))
        dist.barrier()

    def load(self, step):
        state = self._app_state()
        state["extra"] = {"scheduler": self.scheduler.state_dict(), "stream": self.stream.state_dict(), "step": 0}
        dcp.load(state, checkpoint_id=self._path(step))
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"],
                       optim_state_dict=state["optimizer"])
        self.scheduler.load_state_dict(state["extra"]["scheduler"])
        self.stream.load_state_dict(state["extra"]["stream"])
        return state["extra"]["step"]
