import os

import torch
import torch.distributed as dist


def save_checkpoint(folder, step, model, optimizer, loader_state):
    """Rank 0 writes weights; every rank writes where it is in its own stream."""
    rank = dist.get_rank()
    torch.save(loader_state, os.path.join(folder, f"loader-rank{rank}.pt"))
    if rank == 0:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()},
                   os.path.join(folder, "model.pt"))
    dist.barrier()


def load_checkpoint(folder):
    rank = dist.get_rank()
    path = os.path.join(folder, "model.pt")
    if not os.path.exists(path):
        return None, None
    return torch.load(path), torch.load(os.path.join(folder, f"loader-rank{rank}.pt"))
