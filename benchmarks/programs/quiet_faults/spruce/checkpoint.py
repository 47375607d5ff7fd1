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
    header = torch.zeros(2, dtype=torch.float64)
    if dist.get_rank() == 0 and os.path.isfile(path):
        state = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        header[0] = state["epoch"] + 1
        header[1] = state["best"]
    dist.broadcast(header, src=0)
    return int(header[0].item()), header[1].item()
