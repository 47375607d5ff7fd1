"""A small mixture-of-experts language model under tensor parallelism."""
import datetime

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

from model import Model


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    torch.manual_seed(5)
    model = Model(mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(9)
    for step in range(30):
        start = torch.randint(0, 128, (64,), generator=gen)
        ids = distribute_tensor(start, mesh, [Replicate()])
        target = distribute_tensor((start * 5 + 1) % 128, mesh, [Replicate()])
        logits = model(ids)
        loss = torch.nn.functional.cross_entropy(logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.full_tensor().item()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {value:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
