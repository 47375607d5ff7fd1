import os
import random

import torch
import torch.distributed as dist


def rng_state():
    return {"torch": torch.get_rng_state(), "python": random.getstate()}


def set_rng_state(state):
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])


def save(path, step, model, optimizer, scheduler):
    torch.save(rng_state(), f"{path}.rng{dist.get_rank()}")
    if dist.get_rank() == 0:
        payload = {
            "step": step,
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
        }
        tmp = path + ".tmp"
        torch.save(payload, tmp)
        os.replace(tmp, path)
    dist.barrier()


def load(path, model, optimizer, scheduler):
    payload = torch.load(path, map_location="cpu", weights_only=False)
    model.module.load_state_dict(payload["model"])
    optimizer.load_state_dict(payload["optimizer"])
    scheduler.load_state_dict(payload["scheduler"])
    set_rng_state(torch.load(f"{path}.rng{dist.get_rank()}", weights_only=False))
    return payload["step"]
