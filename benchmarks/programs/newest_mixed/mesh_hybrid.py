"""Hybrid sharding on a 2-D mesh, small norm/bias tensors kept replicated and reduced by hand."""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Layer(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.a = nn.Linear(d, 4 * d)
        self.b = nn.Linear(4 * d, d)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(3)])
        self.gain = nn.Parameter(torch.ones(32))
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x * self.gain)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    net = Net()
    for layer in net.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh, ignored_params={net.gain})
    sharded = [p for p in net.parameters() if p is not net.gain]
    opt = torch.optim.AdamW([{"params": sharded}, {"params": [net.gain], "weight_decay": 0.0}], lr=2e-3, foreach=False)
    w = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    g = torch.Generator().manual_seed(60 + rank)
    for step in range(60):
        x = torch.randn(32, 32, generator=g)
        loss = nn.functional.cross_entropy(net(x), (x @ w).argmax(1))
        opt.zero_grad()
        loss.backward()
        dist.all_reduce(net.gain.grad)
        net.gain.grad /= world
        opt.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    ref = net.gain.detach().clone()
    dist.broadcast(ref, 0)
    assert torch.equal(ref, net.gain)
    p = net.layers[0].a.weight
    print(f"[{rank}] coord {mesh.get_coordinate()} local {tuple(p.to_local().shape)} sum {p.to_local().sum().item():.5f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
