import logging
import os
import shutil

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

log = logging.getLogger(__name__)


class BestKeeper:
    """Keeps the sharded checkpoint of the epoch with the lowest validation error."""

    def __init__(self, root):
        self.root = root
        self.best = float("inf")
        if dist.get_rank() == 0 and os.path.isdir(root):
            shutil.rmtree(root)
        dist.barrier()

    def update(self, epoch, score, model, opt):
        if score >= self.best:
            return False
        self.best = score
        model_sd, opt_sd = get_state_dict(model, opt)
        dcp.save({"model": model_sd, "optim": opt_sd},
                 checkpoint_id=os.path.join(self.root, f"epoch_{epoch:03d}"))
        log.info("epoch %d saved (%.5f)", epoch, score)
        return True
