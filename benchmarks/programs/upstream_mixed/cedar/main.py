"""Supervised fine-tuning with sharded parameters and a periodic validation."""
import datetime

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh

from data import Packed
from evaluate import run_eval
from model import TinyLM, shard


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp_shard",))
    torch.manual_seed(0)
    model = shard(TinyLM(), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    train = iter(Packed(400, 1, rank, world, repeat=True))
    valid = Packed(64, 77, rank, world)
    for step in range(1, 41):
        x, y = next(train)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            value = run_eval(model, valid)
            if rank == 0:
                print(f"step {step} train {loss.item():.4f} valid {value:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
