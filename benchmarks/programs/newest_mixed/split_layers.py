"""Column/row-parallel transformer MLP with DTensor."""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Block(nn.Module):
    def __init__(self, d=32, h=128):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up = nn.Linear(d, h)
        self.down = nn.Linear(h, d)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    torch.manual_seed(4)
    net = nn.Sequential(Block(), Block(), nn.Linear(32, 8))
    for i in (0, 1):
        parallelize_module(net[i], mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3, foreach=False)
    g = torch.Generator().manual_seed(123)
    w = torch.randn(32, 8, generator=g)
    for step in range(120):
        x = torch.randn(64, 32, generator=g)
        y = (x @ w).argmax(1)
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            print(f"[tp{rank}] step {step} loss {loss.item():.4f}", flush=True)
    rep = net[2].weight.detach().clone()
    dist.broadcast(rep, 0)
    assert torch.allclose(rep, net[2].weight, atol=1e-5)
    print(f"[tp{rank}] local up shard {tuple(net[0].up.weight.to_local().shape)}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
