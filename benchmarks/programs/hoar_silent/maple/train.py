import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from moe import MoELayer


class Net(nn.Module):
    def __init__(self, dim=16, width=48, classes=6):
        super().__init__()
        self.inp = nn.Linear(dim, width)
        self.moe = MoELayer(width, 2 * width)
        self.out = nn.Linear(width, classes)

    def forward(self, x):
        h, balance = self.moe(torch.relu(self.inp(x)))
        return self.out(h), balance


def split(model):
    experts = [p for p in model.parameters() if getattr(p, "is_expert", False)]
    shared = [p for p in model.parameters() if not getattr(p, "is_expert", False)]
    return shared, experts


def finish_gradients(shared, experts):
    world = dist.get_world_size()
    for p in shared:
        dist.all_reduce(p.grad)
        p.grad /= world
    # an expert has already seen the tokens of all ranks
    for p in experts:
        if p.grad is not None:
            p.grad /= world


def clip(shared, experts, limit):
    sq = torch.stack([p.grad.pow(2).sum() for p in experts if p.grad is not None] or [torch.zeros(())]).sum()
    dist.all_reduce(sq)
    norm = (sq + sum(p.grad.pow(2).sum() for p in shared)).sqrt()
    scale = min(1.0, limit / (norm.item() + 1e-6))
    for p in shared + experts:
        if p.grad is not None:
            p.grad *= scale
    return norm


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--batch", type=int, default=96)
    ap.add_argument("--balance", type=float, default=0.02)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(70 + rank)
    model = Net()
    shared, experts = split(model)
    for p in shared:
        dist.broadcast(p.data, src=0)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    w = torch.randn(3, 16, 6, generator=torch.Generator().manual_seed(0))
    gen = torch.Generator().manual_seed(300 + rank)
    for step in range(1, args.steps + 1):
        x = torch.randn(args.batch, 16, generator=gen)
        regime = (x[:, 0] > 0.4).long() + (x[:, 0] > -0.4).long()
        y = torch.einsum("nd,ndc->nc", x, w[regime]).argmax(1)
        logits, balance = model(x)
        loss = F.cross_entropy(logits, y) + args.balance * balance
        opt.zero_grad()
        loss.backward()
        finish_gradients(shared, experts)
        clip(shared, experts, 1.0)
        opt.step()
        if step % 30 == 0:
            t = torch.stack([loss.detach(), (logits.argmax(1) == y).float().mean()])
            dist.all_reduce(t)
            if rank == 0:
                print(f"step {step} loss {t[0] / world:.4f} acc {t[1] / world:.3f}", flush=True)
    torch.save({"expert": [p.detach() for p in experts]}, f"expert_{rank}.pt")
    if rank == 0:
        torch.save({"shared": [p.detach() for p in shared]}, "shared.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
