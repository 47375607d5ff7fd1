"""Decentralised SGD: every worker averages with its ring neighbours only."""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def shard(rank, world, n=3000, dim=20):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, dim, generator=g)
    w = torch.randn(dim, 3, generator=g)
    y = (x @ w).argmax(1)
    order = y.argsort(stable=True)
    keep = order[rank * n // world:(rank + 1) * n // world]
    mixed = torch.randperm(n, generator=g)[:n // 4]
    keep = torch.cat([keep, mixed])
    return x[keep], y[keep]


def exchange(vec, left, right):
    from_left, from_right = torch.empty_like(vec), torch.empty_like(vec)
    ops = [dist.P2POp(dist.isend, vec, left), dist.P2POp(dist.isend, vec, right),
           dist.P2POp(dist.irecv, from_right, right), dist.P2POp(dist.irecv, from_left, left)]
    for req in dist.batch_isend_irecv(ops):
        req.wait()
    return (vec + from_left + from_right) / 3


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world, (rank + 1) % world
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    x, y = shard(rank, world)
    g = torch.Generator().manual_seed(50 + rank)
    for step in range(200):
        idx = torch.randint(0, len(x), (32,), generator=g)
        loss = nn.functional.cross_entropy(net(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        vec = parameters_to_vector(net.parameters()).detach()
        mixed = exchange(vec, left, right)
        drift = (mixed - vec).norm() / vec.norm()
        vector_to_parameters(mixed, net.parameters())
        if step % 25 == 0:
            print(f"[{rank}] step {step} loss {loss.item():.3f} consensus gap {drift:.4f}", flush=True)
    vec = parameters_to_vector(net.parameters()).detach()
    dist.all_reduce(vec)
    vector_to_parameters(vec / world, net.parameters())
    g = torch.Generator().manual_seed(0)
    xt = torch.randn(3000, 20, generator=g)
    yt = (xt @ torch.randn(20, 3, generator=g)).argmax(1)
    acc = (net(xt).argmax(1) == yt).float().mean()
    if rank == 0:
        print(f"consensus model accuracy {acc:.3f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
