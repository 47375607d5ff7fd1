"""Train, checkpoint with torch.distributed.checkpoint, rebuild everything, load and go on."""
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard


class CheckpointManager:
    def __init__(self, folder, model, optimizer, scheduler):
        self.folder, self.model, self.optimizer, self.scheduler = folder, model, optimizer, scheduler

    def save(self, step):
        state = {"model": get_model_state_dict(self.model),
                 "optimizer": self.optimizer.state_dict(),
                 "extra": {"step": step, "scheduler": self.scheduler.state_dict()}}
        dcp.save(state, checkpoint_id=os.path.join(self.folder, f"step-{step}"))

    def load(self, step):
        state = {"model": get_model_state_dict(self.model),
                 "optimizer": self.optimizer.state_dict(),
                 "extra": {"step": 0, "scheduler": self.scheduler.state_dict()}}
        dcp.load(state, checkpoint_id=os.path.join(self.folder, f"step-{step}"))
        set_model_state_dict(self.model, state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["extra"]["scheduler"])
        return state["extra"]["step"]


class Regressor(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.inp = nn.Linear(16, width)
        self.hidden = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(3))
        self.out = nn.Linear(width, 4)

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        for layer in self.hidden:
            h = h + layer(h)
        return self.out(h)


def build(lr):
    torch.manual_seed(31)
    model = Regressor()
    for layer in model.hidden:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.99))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 30))
    return model, optimizer, scheduler


def batch(step, rank, teacher):
    g = torch.Generator().manual_seed(step * 64 + rank)
    x = torch.randn(64, 16, generator=g)
    return x, torch.sin(x @ teacher) * torch.tensor([1.0, 5.0, 0.2, 2.0])


def run(model, optimizer, scheduler, start, stop, teacher):
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(start, stop):
        x, y = batch(step, rank, teacher)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {mean.item() / world:.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    teacher = torch.randn(16, 4, generator=torch.Generator().manual_seed(2)) * 0.25
    where = [tempfile.mkdtemp(prefix="ckpt-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(where, src=0)
    model, optimizer, scheduler = build(5e-3)
    run(model, optimizer, scheduler, 0, 100, teacher)
    CheckpointManager(where[0], model, optimizer, scheduler).save(100)

    model, optimizer, scheduler = build(5e-3)
    first = CheckpointManager(where[0], model, optimizer, scheduler).load(100)
    if dist.get_rank() == 0:
        print(f"resumed at step {first}", flush=True)
    run(model, optimizer, scheduler, first, 200, teacher)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(where[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
