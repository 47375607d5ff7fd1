import argparse
import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


class GatherRows(torch.autograd.Function):
    """Stacks the rows of all processes; gradients come back to the rows they belong to."""

    @staticmethod
    def forward(ctx, x):
        out = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(out, x.contiguous())
        return torch.cat(out)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        n = grad.size(0) // dist.get_world_size()
        return grad[dist.get_rank() * n : (dist.get_rank() + 1) * n]


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--scenes", type=int, default=720)
    p.add_argument("--held", type=int, default=60)
    p.add_argument("--batch", type=int, default=18)
    p.add_argument("--chunks", type=int, default=3)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=14)
    p.add_argument("--out", default="out_elgon")
    return p.parse_args()


class Block(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(w), nn.Linear(w, 2 * w), nn.Linear(2 * w, w)

    def forward(self, x):
        return x + self.b(F.gelu(self.a(self.norm(x))))


class Tower(nn.Module):
    def __init__(self, d_in, d_out, width=48, depth=3):
        super().__init__()
        self.inp = nn.Linear(d_in, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.out = nn.Linear(width, d_out)

    def forward(self, x):
        h = self.inp(x)
        for b in self.blocks:
            h = checkpoint(b, h, use_reentrant=False) if self.training else b(h)
        return F.normalize(self.out(h), dim=-1)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = Tower(20, 24), Tower(28, 24)
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, a, b):
        return self.left(a), self.right(b), self.log_scale.exp()


def local_rows_loss(a, b, scale, rank):
    """Rows of this process against the columns of all of them, in both directions."""
    all_a, all_b = GatherRows.apply(a), GatherRows.apply(b)
    target = torch.arange(len(a)) + rank * len(a)
    return 0.5 * (F.cross_entropy(scale * a @ all_b.t(), target) + F.cross_entropy(scale * b @ all_a.t(), target))


def cached_step(model, a, b, args, rank):
    """Embeds without a graph first, then sends the gradient of the embeddings through chunk by chunk."""
    with torch.no_grad():
        za, zb, scale = model.module(a, b)
    za, zb = za.detach().requires_grad_(), zb.detach().requires_grad_()
    scale = scale.detach().requires_grad_()
    loss = local_rows_loss(za, zb, scale, rank)
    loss.backward()
    parts = list(zip(a.chunk(args.chunks), b.chunk(args.chunks), za.grad.chunk(args.chunks), zb.grad.chunk(args.chunks)))
    for k, (ca, cb, ga, gb) in enumerate(parts):
        last = k == len(parts) - 1
        with contextlib.nullcontext() if last else model.no_sync():
            xa, xb, s = model(ca, cb)
            surrogate = (xa * ga).sum() + (xb * gb).sum()
            if last:
                surrogate = surrogate + s * scale.grad
            else:
                surrogate = surrogate + 0.0 * s
            surrogate.backward()
    return loss.detach()


def views(args):
    g = torch.Generator().manual_seed(args.seed)
    z = torch.randn(args.scenes + args.held, 10, generator=g)
    a = torch.tanh(z @ torch.randn(10, 20, generator=g)) + 0.1 * torch.randn(len(z), 20, generator=g)
    b = torch.tanh(z @ torch.randn(10, 28, generator=g)) + 0.1 * torch.randn(len(z), 28, generator=g)
    return a, b


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    a, b = views(args)
    model = DDP(Pair())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    steps = args.scenes // (world * args.batch)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * steps)
    for epoch in range(args.epochs):
        model.train()
        order = torch.randperm(args.scenes, generator=torch.Generator().manual_seed(args.seed + epoch))
        total = torch.zeros(())
        for step in range(steps):
            block = order[step * world * args.batch : (step + 1) * world * args.batch]
            idx = block[rank * args.batch : (rank + 1) * args.batch]
            opt.zero_grad(set_to_none=True)
            total += cached_step(model, a[idx], b[idx], args, rank)
            opt.step()
            sched.step()
        dist.all_reduce(total)
        model.eval()
        with torch.no_grad():
            za, zb, _ = model.module(a[args.scenes :], b[args.scenes :])
            mine = torch.arange(rank, args.held, world)
            hit = torch.tensor([(za[mine] @ zb.t()).argmax(1).eq(mine).sum().item(), len(mine)])
        dist.all_reduce(hit)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / steps / world:.4f} r@1 {hit[0].item() / hit[1].item():.3f} "
                  f"scale {model.module.log_scale.exp().item():.2f}", flush=True)
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save(model.module.state_dict(), os.path.join(args.out, "pair.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
