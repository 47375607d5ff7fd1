import os
import random

import numpy as np
import torch
import torch.distributed as dist


def rng_state():
    return {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}


def set_rng_state(state):
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])


class CheckpointManager:
    def __init__(self, folder):
        self.path = os.path.join(folder, "checkpoint.pt")
        os.makedirs(folder, exist_ok=True)

    def save(self, model, optimizer, scheduler, epoch):
        rng = [None] * dist.get_world_size()
        dist.all_gather_object(rng, rng_state())
        state = {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "epoch": epoch,
            "rng": rng,
        }
        if dist.get_rank() == 0:
            torch.save(state, self.path + ".tmp")
            os.replace(self.path + ".tmp", self.path)
        dist.barrier()

    def restore(self, model, optimizer, scheduler):
        if not os.path.exists(self.path):
            return 0
        state = torch.load(self.path, map_location="cpu", weights_only=False)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        set_rng_state(state["rng"][dist.get_rank()])
        return state["epoch"]
