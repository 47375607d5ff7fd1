import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict


class CheckpointManager:
    def __init__(self, root, model, optimizer, scheduler):
        self.root = root
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler

    def _dir(self, step):
        return os.path.join(self.root, f"step_{step:06d}")

    def save(self, step):
        state = {
            "model": get_model_state_dict(self.model),
            "optimizer": self.optimizer.state_dict(),
            "train": {"step": torch.tensor(step)},
        }
        dcp.save(state, checkpoint_id=self._dir(step))
        if dist.get_rank() == 0:
            torch.save(self.scheduler.state_dict(), os.path.join(self._dir(step), "scheduler.pt"))
            with open(os.path.join(self.root, "latest"), "w") as f:
                f.write(str(step))
        dist.barrier()

    def load(self):
        with open(os.path.join(self.root, "latest")) as f:
            step = int(f.read())
        state = {
            "model": get_model_state_dict(self.model),
            "optimizer": self.optimizer.state_dict(),
            "train": {"step": torch.tensor(0)},
        }
        dcp.load(state, checkpoint_id=self._dir(step))
        set_model_state_dict(self.model, state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(torch.load(os.path.join(self._dir(step), "scheduler.pt")))
        return int(state["train"]["step"])
