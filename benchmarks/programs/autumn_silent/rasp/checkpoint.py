import os

import torch
import torch.distributed as dist


class Checkpointer:
    """Single-writer checkpoints: rank 0 does all file access."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "last.pt")

    def save(self, model, optimizer, step):
        if dist.get_rank() == 0:
            tmp = self.path + ".tmp"
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, tmp)
            os.replace(tmp, self.path)
        dist.barrier()

    def restore(self, model, optimizer):
        state = None
        if dist.get_rank() == 0 and os.path.exists(self.path):
            state = torch.load(self.path, map_location="cpu", weights_only=True)
        box = [state]
        dist.broadcast_object_list(box, src=0)
        state = box[0]
        if state is not None:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        return state["step"] if state is not None else 0
