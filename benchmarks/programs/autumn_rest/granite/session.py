import os

import torch
import torch.distributed as dist


def open_group(tag):
    """A fresh process group on the store of the launcher; every generation has its own prefix."""
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(f"generation/{tag}", store),
        rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]),
    )


class Checkpoint:
    def __init__(self, folder):
        self.folder = folder

    def _private(self, rank):
        return os.path.join(self.folder, f"private-{rank}.pt")

    def _common(self):
        return os.path.join(self.folder, "common.pt")

    def save(self, common, private):
        rank = dist.get_rank()
        torch.save(private, self._private(rank) + ".tmp")
        if rank == 0:
            torch.save(common, self._common() + ".tmp")
        dist.barrier()
        os.replace(self._private(rank) + ".tmp", self._private(rank))
        if rank == 0:
            os.replace(self._common() + ".tmp", self._common())
        dist.barrier()

    def load(self):
        there = [os.path.exists(self._common()) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(there)
        if not there[0]:
            return None, None
        return torch.load(self._common()), torch.load(self._private(dist.get_rank()))
