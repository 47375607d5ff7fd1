import os

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


def is_main():
    return dist.get_rank() == 0


def to_full(value):
    if isinstance(value, DTensor):
        value = value.full_tensor()
    return value.detach().cpu() if torch.is_tensor(value) else value


def gather_model(model):
    return {name: to_full(p) for name, p in model.state_dict().items()}


def gather_optimizer(model, optimizer):
    names = {p: n for n, p in model.named_parameters()}
    out = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = optimizer.state.get(p, {})
            out[names[p]] = {k: to_full(v) for k, v in state.items()}
    return out


class CheckpointWriter:
    def __init__(self, folder, keep=2):
        self.folder = folder
        self.keep = keep
        self.files = []
        if is_main():
            os.makedirs(folder, exist_ok=True)

    def save(self, step, model, optimizer, with_optimizer=True):
        payload = {"step": step, "model": gather_model(model)}
        if with_optimizer:
            payload["optim"] = gather_optimizer(model, optimizer)
        if is_main():
            path = os.path.join(self.folder, f"step{step}.pt")
            torch.save(payload, path)
            self.files.append(path)
            while len(self.files) > self.keep:
                os.remove(self.files.pop(0))
        dist.barrier()
