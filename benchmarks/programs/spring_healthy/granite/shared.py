import os

import torch
import torch.distributed as dist


class SharedArena:
    """One float buffer in /dev/shm mapped by all ranks of the host."""

    def __init__(self, numel, tag):
        names = [f"/dev/shm/{tag}-{os.getpid()}.bin"] if dist.get_rank() == 0 else [None]
        dist.broadcast_object_list(names, src=0)
        self.path = names[0]
        if dist.get_rank() == 0:
            with open(self.path, "wb") as f:
                f.truncate(numel * 4)
        dist.barrier()
        self.data = torch.from_file(self.path, shared=True, size=numel, dtype=torch.float32)
        dist.barrier()
        if dist.get_rank() == 0:
            os.unlink(self.path)        # the mappings stay


def adopt(module, arena):
    """Let the parameters of a module live in the arena. Rank 0 supplies the first values."""
    at = 0
    for p in module.parameters():
        view = arena.data[at:at + p.numel()].view_as(p)
        if dist.get_rank() == 0:
            view.copy_(p.detach())
        p.data = view
        at += p.numel()
    dist.barrier()
