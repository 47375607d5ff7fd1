"""Hybrid-sharded training that is interrupted once and goes on from its checkpoint."""
import datetime
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from checkpoint import Checkpointer


def build(mesh):
    torch.manual_seed(17)
    model = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    fully_shard(model[2], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(model, first, last, gen):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(first, last):
        x = torch.randn(16, 24, generator=gen)
        y = x[:, :3].argmax(1)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    root = [tempfile.mkdtemp(prefix="run") if rank == 0 else None]
    dist.broadcast_object_list(root, src=0)
    gen = torch.Generator().manual_seed(180 + rank)
    checkpointer = Checkpointer(root[0], mesh)
    model = build(mesh)
    loss = train(model, 0, 15, gen)
    checkpointer.save(model, 15)
    if rank == 0:
        print(f"interrupted at 15, loss {loss:.4f}", flush=True)

    model = build(mesh)
    checkpointer.load(model, 15)
    loss = train(model, 15, 30, gen)
    if rank == 0:
        print(f"finished at 30, loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
