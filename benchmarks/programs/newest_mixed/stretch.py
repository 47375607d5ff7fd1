"""Depth grows during training; the wrapper and optimiser are rebuilt at each stage."""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Res(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.f = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        nn.init.zeros_(self.f[-1].weight)
        nn.init.zeros_(self.f[-1].bias)

    def forward(self, x):
        return x + self.f(x)


class Net(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.inp, self.blocks, self.out = nn.Linear(16, d), nn.ModuleList(), nn.Linear(d, 6)
        self.d = d

    def grow(self, n):
        for _ in range(n):
            self.blocks.append(Res(self.d))

    def forward(self, x):
        h = self.inp(x)
        for b in self.blocks:
            h = b(h)
        return self.out(h)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Net()
    w = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
    g = torch.Generator().manual_seed(90 + rank)
    step = 0
    for stage, (extra, steps) in enumerate([(1, 40), (1, 40), (2, 50), (2, 50)]):
        net.grow(extra)
        fresh = [p for b in net.blocks[-extra:] for p in b.parameters()]
        old = [p for p in net.parameters() if not any(p is f for f in fresh)]
        for p in old:
            p.requires_grad_(stage == 0)
        ddp = DDP(net)
        opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=3e-3)
        for i in range(steps):
            if stage and i == 10:
                for p in old:
                    p.requires_grad_(True)
                ddp = DDP(net)
                opt.add_param_group({"params": old, "lr": 1e-3})
            x = torch.randn(32, 16, generator=g)
            loss = nn.functional.cross_entropy(ddp(x), (torch.sin(2 * x) @ w).argmax(1))
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
        if rank == 0:
            n = sum(p.numel() for p in net.parameters())
            print(f"stage {stage} step {step} params {n} loss {loss.item():.4f}", flush=True)
    for p in net.parameters():
        ref = p.detach().clone()
        dist.broadcast(ref, 0)
        assert torch.equal(ref, p)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
