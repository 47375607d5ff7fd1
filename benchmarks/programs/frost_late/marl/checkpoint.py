from pathlib import Path

import torch
import torch.distributed as dist


def save_best(model, step, folder):
    folder = Path(folder)
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({"step": step, "model": model.state_dict()}, folder / "best.pt")
    dist.barrier()


def load_best(model, folder):
    folder = Path(folder)
    state = torch.load(folder / "best.pt", map_location="cpu")
    model.load_state_dict(state["model"])
    return state["step"]
