import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, distribute_module


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))
        self.shift = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        return F.layer_norm(x, x.shape[-1:], self.scale.to_local(), self.shift.to_local())


class Mix(nn.Module):
    def __init__(self, din, dout):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dout, din) / din**0.5)

    def forward(self, x):
        return F.linear(x, self.weight.to_local(grad_placements=[Partial()]))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(17)
    model = nn.Sequential(Mix(8, 24), Norm(24), nn.GELU(), Mix(24, 24), Norm(24), nn.GELU(), Mix(24, 4))
    distribute_module(model, mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    truth = torch.randn(8, 4)
    gen = torch.Generator().manual_seed(90)
    for step in range(40):
        x = torch.randn(8, 16, 8, generator=gen)
        y = (x @ truth).argmax(dim=-1)
        xs, ys = x.chunk(world, dim=1)[rank], y.chunk(world, dim=1)[rank]
        logits = model(xs)
        loss = F.cross_entropy(logits.flatten(0, 1), ys.flatten(), reduction="sum") / y.numel()
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            p.grad = p.grad.redistribute(placements=[Replicate()])
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item() * world:.4f}", flush=True)
    dist.barrier()
    time.sleep(0.3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
