import os

import torch
import torch.distributed as dist


def save_checkpoint(path, model, optimizer, epoch, best):
    if dist.get_rank() == 0:
        tmp = path + ".tmp"
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "best": best}, tmp
        )
        os.replace(tmp, path)
    dist.barrier()


def load_checkpoint(path, model, optimizer):
    """Returns the epoch to start with and the best score so far."""
    if os.path.isfile(path):
        state = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return state["epoch"] + 1, state["best"]
    return 0, 0.0
