"""Ring averaging of gradients; the ring turns round every few steps and changes its transport."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector


def pass_on_async(buf, dst, src):
    got = torch.empty_like(buf)
    works = [dist.isend(buf, dst), dist.irecv(got, src)]
    for w in works:
        w.wait()
    return got


def pass_on_ordered(buf, dst, src):
    got = torch.empty_like(buf)
    if dist.get_rank() == 0:
        dist.recv(got, src)
        dist.send(buf, dst)
    else:
        dist.send(buf, dst)
        dist.recv(got, src)
    return got


def ring_mean(vec, step):
    rank, world = dist.get_rank(), dist.get_world_size()
    turn = 1 if (step // 5) % 2 == 0 else -1
    hop = pass_on_async if step < 15 else pass_on_ordered
    parts = {rank: vec}
    buf = vec
    for k in range(1, world):
        buf = hop(buf, (rank + turn) % world, (rank - turn) % world)
        parts[(rank - turn * k) % world] = buf
    return torch.stack([parts[r] for r in sorted(parts)]).mean(0)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=30)
    ap.add_argument("--width", type=int, default=400)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, a.width), nn.ReLU(), nn.Linear(a.width, a.width), nn.ReLU(), nn.Linear(a.width, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    gen = torch.Generator().manual_seed(rank + 1)
    for step in range(a.steps):
        x = torch.randn(16, 10, generator=gen)
        loss = nn.functional.mse_loss(net(x), x.mean(1, keepdim=True))
        opt.zero_grad()
        loss.backward()
        mean = ring_mean(parameters_to_vector([p.grad for p in net.parameters()]), step)
        at = 0
        for p in net.parameters():
            p.grad.copy_(mean[at:at + p.numel()].view_as(p))
            at += p.numel()
        opt.step()
    check = parameters_to_vector(net.parameters()).double().sum().item()
    print(f"rank {rank} loss {loss.item():.4f} sum {check:.8f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
