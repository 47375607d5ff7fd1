import os
import random

import torch
import torch.distributed as dist


class Checkpointer:
    """Rank 0 writes model/optimizer/schedule, each rank adds its own RNG file."""

    def __init__(self, folder):
        self.folder = folder
        if dist.get_rank() == 0:
            os.makedirs(folder, exist_ok=True)
        dist.barrier()

    def _path(self, name):
        return os.path.join(self.folder, name)

    def save(self, model, optimizer, scheduler, progress):
        rank = dist.get_rank()
        torch.save({"torch": torch.get_rng_state(), "python": random.getstate()}, self._path(f"rng_{rank}.pt"))
        if rank == 0:
            tmp = self._path("last.pt.tmp")
            torch.save({
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "progress": dict(progress),
            }, tmp)
            os.replace(tmp, self._path("last.pt"))
        dist.barrier()

    def restore(self, model, optimizer, scheduler):
        blob = torch.load(self._path("last.pt"), weights_only=False)
        model.module.load_state_dict(blob["model"])
        optimizer.load_state_dict(blob["optimizer"])
        scheduler.load_state_dict(blob["scheduler"])
        rng = torch.load(self._path(f"rng_{dist.get_rank()}.pt"), weights_only=False)
        torch.set_rng_state(rng["torch"])
        random.setstate(rng["python"])
        return blob["progress"]
