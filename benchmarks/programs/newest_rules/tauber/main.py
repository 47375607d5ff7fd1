import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, dim=16, depth=2, classes=4):
        super().__init__()
        self.inp = nn.Linear(8, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Limiter:
    def __init__(self, mesh, max_norm):
        self.copies = mesh["replicate"].size()
        self.max_norm = max_norm

    def __call__(self, params):
        grads = [p.grad.to_local() for p in params if p.grad is not None]
        squares = torch.stack([g.float().pow(2).sum() for g in grads]).sum()
        largest = torch.stack([g.abs().max() if g.numel() else g.new_zeros(()) for g in grads]).max()
        dist.all_reduce(squares)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        norm = (squares / self.copies).sqrt()
        factor = (self.max_norm / (norm + 1e-6)).clamp(max=1.0)
        for g in grads:
            g.mul_(factor)
        return norm, largest


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(5)
    model = Net()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    limit = Limiter(mesh, 0.5)

    truth = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    gen = torch.Generator().manual_seed(200 + rank)
    for step in range(30):
        x = torch.randn(16, 8, generator=gen)
        y = (x @ truth).argmax(dim=1)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        norm, largest = limit(model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} norm {norm.item():.4f} max {largest.item():.4f}", flush=True)
    dist.barrier()
    time.sleep(0.3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
