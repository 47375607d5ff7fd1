import logging
import os
import shutil

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

log = logging.getLogger("checkpoint")


class CheckpointManager:
    """Keeps the newest `keep` checkpoints; at most one save is in flight."""

    def __init__(self, root, model, optimizer, keep=2):
        self.root, self.model, self.optimizer, self.keep = root, model, optimizer, keep
        self.pending = None
        self.done = []
        self.group = None

    def wait(self):
        if self.pending is None:
            return
        step, future = self.pending
        future.result()
        self.pending = None
        self.done.append(step)
        if dist.get_rank() == 0:
            log.info("checkpoint %d complete", step)
            for old in self.done[:-self.keep]:
                shutil.rmtree(self._path(old), ignore_errors=True)

    def _path(self, step):
        return os.path.join(self.root, f"step-{step:06d}")

    def save(self, step):
        self.wait()
        model_sd, optim_sd = get_state_dict(self.model, self.optimizer)
        future = dcp.async_save({"model": model_sd, "optim": optim_sd},
                                checkpoint_id=self._path(step), process_group=self.group)
        self.pending = (step, future)
