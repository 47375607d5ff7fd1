from pathlib import Path

import torch
import torch.distributed as dist


def save_best(model, step, folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if dist.get_rank() == 0:
        torch.save({"step": step, "model": dict(model.named_parameters())}, folder / "best.pt")
    torch.save(dict(model.named_buffers()), folder / f"stats.{dist.get_rank()}.pt")
    dist.barrier()


def load_best(model, folder):
    folder = Path(folder)
    state = torch.load(folder / "best.pt", map_location="cpu")
    stats = torch.load(folder / f"stats.{dist.get_rank()}.pt", map_location="cpu")
    model.load_state_dict({**state["model"], **stats})
    return state["step"]
