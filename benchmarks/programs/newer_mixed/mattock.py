"""Sharded model with background checkpoints of torch.distributed.checkpoint and a restart from one."""
import argparse
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.a, self.b = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.b(F.silu(self.a(x)))


class Net(nn.Module):
    def __init__(self, dim=16, depth=2):
        super().__init__()
        self.layers = nn.ModuleList(Layer(dim) for _ in range(depth))
        self.out = nn.Linear(dim, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def build(mesh, seed):
    torch.manual_seed(seed)
    model = Net()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=4e-3, foreach=False)


def snapshot(model, opt, step):
    m, o = get_state_dict(model, opt)
    return {"model": m, "optim": o, "step": torch.tensor(step)}


def run(model, opt, gen, first, last, save_at, root, io_group):
    future = None
    for step in range(first, last):
        x = torch.randn(16, 16, generator=gen)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step + 1 == save_at:
            future = dcp.async_save(snapshot(model, opt, step + 1), checkpoint_id=os.path.join(root, f"s{step + 1}"), process_group=io_group)
    if future is not None:
        future.result()
    return loss.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=24)
    p.add_argument("--save-at", type=int, default=10)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    io_group = dist.new_group(backend="gloo")
    mesh = init_device_mesh("cpu", (world,))
    root = [tempfile.mkdtemp(prefix="mattock_") if rank == 0 else None]
    dist.broadcast_object_list(root, src=0)
    gen = torch.Generator().manual_seed(70 + rank)
    model, opt = build(mesh, 5)
    a = run(model, opt, gen, 0, args.steps, args.save_at, root[0], io_group)
    other, opt2 = build(mesh, 6)
    state = snapshot(other, opt2, 0)
    dcp.load(state, checkpoint_id=os.path.join(root[0], f"s{args.save_at}"))
    set_state_dict(other, opt2, model_state_dict=state["model"], optim_state_dict=state["optim"])
    b = run(other, opt2, gen, int(state["step"]), args.steps, -1, root[0], io_group)
    if rank == 0:
        print(f"loss {a:.4f}; from step {int(state['step'])} again {b:.4f}", flush=True)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(root[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
