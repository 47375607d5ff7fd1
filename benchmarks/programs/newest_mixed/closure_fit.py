"""Full-batch L-BFGS over sharded data; the closure reduces loss and gradient."""
import torch
import torch.distributed as dist
import torch.nn as nn


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(6)
    torch.set_default_dtype(torch.float64)
    net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    for p in net.parameters():
        dist.broadcast(p.data, 0)
    g = torch.Generator().manual_seed(1)
    pts = torch.rand(1500, 2, generator=g) * 2 - 1
    val = (torch.sin(torch.pi * pts[:, 0]) * pts[:, 1]).unsqueeze(1)
    bounds = [0, 400, 1500] if world == 2 else [round(i * 1500 / world) for i in range(world + 1)]
    x, y = pts[bounds[rank]:bounds[rank + 1]], val[bounds[rank]:bounds[rank + 1]]
    opt = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=8, history_size=20, line_search_fn="strong_wolfe")
    calls = 0

    def closure():
        nonlocal calls
        calls += 1
        opt.zero_grad()
        loss = ((net(x) - y) ** 2).sum() / len(pts)
        loss.backward()
        packed = torch.cat([loss.detach().reshape(1)] + [p.grad.flatten() for p in net.parameters()])
        dist.all_reduce(packed)
        at = 1
        for p in net.parameters():
            p.grad.copy_(packed[at:at + p.numel()].view_as(p))
            at += p.numel()
        return packed[0]

    for it in range(30):
        loss = opt.step(closure)
        if rank == 0 and it % 3 == 0:
            print(f"iteration {it} evaluations {calls} loss {loss.item():.3e}", flush=True)
    vec = torch.cat([p.detach().flatten() for p in net.parameters()])
    ref = vec.clone()
    dist.broadcast(ref, 0)
    assert torch.equal(ref, vec)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
