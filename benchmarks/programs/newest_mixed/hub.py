"""Central weights on process 0; workers push gradients and pull weights at their own pace."""
import time
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

STEPS = {1: 150, 2: 60}
PULL_PUSH, DONE = 0.0, 1.0


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))


def serve(world):
    net = build()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    size = sum(p.numel() for p in net.parameters())
    active, applied = world - 1, 0
    msg = torch.empty(size + 1)
    while active:
        src = dist.recv(msg)
        if msg[0] == DONE:
            active -= 1
            print(f"worker {src} finished after {applied} server updates", flush=True)
            continue
        offset = 1
        for p in net.parameters():
            p.grad = msg[offset:offset + p.numel()].view_as(p).clone()
            offset += p.numel()
        opt.step()
        applied += 1
        dist.send(parameters_to_vector(net.parameters()).detach(), dst=src)
    g = torch.Generator().manual_seed(0)
    w = torch.randn(32, 10, generator=g)
    x = torch.randn(2000, 32, generator=torch.Generator().manual_seed(9))
    acc = (net(x).argmax(1) == (x @ w).argmax(1)).float().mean()
    print(f"updates {applied} accuracy {acc:.3f}")


def work(rank):
    net = build()
    w = torch.randn(32, 10, generator=torch.Generator().manual_seed(0))
    g = torch.Generator().manual_seed(100 + rank)
    size = sum(p.numel() for p in net.parameters())
    fresh = torch.empty(size)
    for step in range(STEPS.get(rank, 80)):
        x = torch.randn(48, 32, generator=g)
        loss = nn.functional.cross_entropy(net(x), (x @ w).argmax(1))
        net.zero_grad()
        loss.backward()
        if rank == 2:
            time.sleep(0.06)
        grads = torch.cat([p.grad.flatten() for p in net.parameters()])
        dist.send(torch.cat([torch.tensor([PULL_PUSH]), grads]), dst=0)
        dist.recv(fresh, src=0)
        vector_to_parameters(fresh.clone(), net.parameters())
        if step % 20 == 0:
            print(f"[worker {rank}] {step} {loss.item():.3f}", flush=True)
    out = torch.zeros(size + 1)
    out[0] = DONE
    dist.send(out, dst=0)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    serve(dist.get_world_size()) if dist.get_rank() == 0 else work(dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()
