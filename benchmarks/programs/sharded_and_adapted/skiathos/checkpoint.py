import os

import torch
import torch.distributed as dist


def save(path, model, optimizer, scheduler, progress):
    """Every process takes part: the sharded optimizer state is brought together on rank 0."""
    optimizer.consolidate_state_dict(to=0)
    streams = [None] * dist.get_world_size()
    dist.all_gather_object(streams, torch.get_rng_state())
    if dist.get_rank() == 0:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(), "progress": progress, "rng": streams}, path + ".tmp")
        os.replace(path + ".tmp", path)
    dist.barrier()


def load(path, model, optimizer, scheduler):
    blob = torch.load(path, map_location="cpu", weights_only=False)
    model.module.load_state_dict(blob["model"])
    optimizer.load_state_dict(blob["optimizer"])
    scheduler.load_state_dict(blob["scheduler"])
    torch.set_rng_state(blob["rng"][dist.get_rank()])
    return blob["progress"]
