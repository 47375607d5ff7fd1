import datetime
import os

import torch
import torch.distributed as dist


class Saver:
    """Writes checkpoints on the first worker; the rest wait on a group with a long timeout."""

    def __init__(self, path, minutes=120):
        self.path = path
        self.group = dist.new_group(timeout=datetime.timedelta(minutes=minutes))

    def save(self, epoch, net, opt):
        if dist.get_rank() == 0:
            state = {"epoch": epoch, "net": net.state_dict(), "opt": opt.state_dict()}
            torch.save(state, self.path + ".tmp")
            os.replace(self.path + ".tmp", self.path)
        dist.barrier(group=self.group)
