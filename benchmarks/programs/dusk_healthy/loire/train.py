import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from moe import ExpertParallelMoE


class MoENet(nn.Module):
    def __init__(self, dim, n_experts, classes):
        super().__init__()
        self.inp = nn.Linear(48, dim)
        self.moe1, self.moe2 = ExpertParallelMoE(dim, 4 * dim, n_experts), ExpertParallelMoE(dim, 4 * dim, n_experts)
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, x):
        x = F.gelu(self.inp(x))
        x, b1 = self.moe1(x)
        x, b2 = self.moe2(x)
        return self.head(self.norm(x)), b1 + b2


def reduce_gradients(model, world):
    """Dense layers are averaged over the processes. An expert already received the contributions of all
    the processes through the all-to-all, they only have to be divided."""
    for p in model.parameters():
        if getattr(p, "expert", False):
            if p.grad is not None:
                p.grad.div_(world)
        else:
            dist.all_reduce(p.grad)
            p.grad.div_(world)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=80)
    ap.add_argument("--global-batch", type=int, default=384)
    ap.add_argument("--experts", type=int, default=6)
    ap.add_argument("--aux", type=float, default=0.01)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = MoENet(96, args.experts, 16)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    g = torch.Generator().manual_seed(1)
    modes = torch.randn(16, 48, generator=g)
    mixes = torch.randn(4, 48, 48, generator=g) / 7
    for step in range(args.steps):
        t0 = time.time()
        g = torch.Generator().manual_seed(1000 + step)
        y = torch.randint(16, (args.global_batch,), generator=g)
        kind = torch.randint(4, (args.global_batch,), generator=g)
        x = torch.einsum("bij,bj->bi", mixes[kind], modes[y] + 0.4 * torch.randn(args.global_batch, 48, generator=g))
        x, y = x.chunk(world)[rank], y.chunk(world)[rank]
        logits, balance = model(x)
        ce = F.cross_entropy(logits, y)
        opt.zero_grad()
        (ce + args.aux * balance).backward()
        reduce_gradients(model, world)
        opt.step()
        if step % 10 == 0 or step == args.steps - 1:
            total = ce.detach().clone()
            dist.all_reduce(total)
            if rank == 0:
                print(f"step {step} ce {total.item() / world:.5f} balance {balance.item():.3f} {time.time() - t0:.2f}s", flush=True)
    out = args.out or tempfile.mkdtemp()
    os.makedirs(out, exist_ok=True)
    torch.save(model.state_dict(), os.path.join(out, f"moe_rank{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
