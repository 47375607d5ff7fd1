"""Majority-vote sign descent with local momentum."""
import torch
import torch.distributed as dist
import torch.nn as nn


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(9)
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 49, 4))
    for p in net.parameters():
        dist.broadcast(p.data, 0)
    mom = [torch.zeros_like(p) for p in net.parameters()]
    g = torch.Generator().manual_seed(70 + rank)
    lr = 1e-3
    for step in range(150):
        y = torch.randint(0, 4, (24,), generator=g)
        x = 0.4 * torch.randn(24, 1, 14, 14, generator=g)
        for i, c in enumerate(y):
            r, q = divmod(int(c), 2)
            x[i, 0, 7 * r:7 * r + 7, 7 * q:7 * q + 7] += 0.6
        loss = nn.functional.cross_entropy(net(x), y)
        net.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p, m in zip(net.parameters(), mom):
                m.mul_(0.9).add_(p.grad, alpha=0.1)
                ballot = m.sign().to(torch.int8)
                dist.all_reduce(ballot)
                p.mul_(1 - lr * 0.01).sub_(ballot.sign().to(p.dtype), alpha=lr)
        if step == 100:
            lr *= 0.3
        if rank == 0 and step % 15 == 0:
            print(f"step {step} loss {loss.item():.4f} lr {lr:g}", flush=True)
    for p in net.parameters():
        ref = p.detach().clone()
        dist.broadcast(ref, 0)
        assert torch.equal(ref, p)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
