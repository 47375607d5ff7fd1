from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict import set_model_state_dict
from torch.distributed.fsdp import fully_shard


@dataclass
class Stage:
    name: str
    steps: int
    lr: float
    warmup: int
    classes: int
    seed: int


def build(classes):
    torch.manual_seed(90)
    model = nn.ModuleDict({"trunk": nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()),
                           "head": nn.Linear(32, classes)})
    fully_shard(model["trunk"])
    fully_shard(model["head"])
    return model


def train(model, stage):
    rank = dist.get_rank()
    optimizer = torch.optim.AdamW(model.parameters(), lr=stage.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / stage.warmup))
    gen = torch.Generator().manual_seed(stage.seed + rank)
    for step in range(stage.steps):
        x = torch.randn(24, 16, generator=gen)
        y = x[:, :stage.classes].argmax(1)
        loss = nn.functional.cross_entropy(model["head"](model["trunk"](x)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if rank == 0:
        print(f"{stage.name}: loss {mean.item() / dist.get_world_size():.4f}", flush=True)
    return optimizer, schedule


def save(path, model, optimizer, schedule, stage):
    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer),
             "schedule": schedule.state_dict(), "step": stage.steps}
    dcp.save(state, checkpoint_id=path)


def load_trunk(path, model):
    """Start from the trunk of an earlier stage; head, optimizer and schedule begin anew."""
    state = {"model": {k: v for k, v in get_model_state_dict(model).items() if k.startswith("trunk.")}}
    dcp.load(state, checkpoint_id=path)
    set_model_state_dict(model, state["model"], options=StateDictOptions(strict=False))
