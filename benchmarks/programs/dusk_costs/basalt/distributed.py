"""Thin helpers around torch.distributed used by the trainer."""
import contextlib
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP


def setup():
    dist.init_process_group("gloo")
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def wrap(model, parallelism):
    """Wrap the policy either with DDP or with per-block FSDP2 sharding."""
    if parallelism == "ddp":
        return DDP(model)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    return model


@contextlib.contextmanager
def sync_grad(model, enabled):
    """Defer the gradient reduction to the last micro-batch of a window."""
    if isinstance(model, DDP):
        if enabled:
            yield
        else:
            with model.no_sync():
                yield
    else:
        yield


def mean(value):
    t = torch.as_tensor(value, dtype=torch.float64)
    dist.all_reduce(t)
    return (t / dist.get_world_size()).item()
