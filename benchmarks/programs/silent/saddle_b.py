import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class CopyToTP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous()
        dist.all_reduce(g)
        return g


class ReduceFromTP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class ColumnLinear(nn.Module):
    def __init__(self, full_weight):
        super().__init__()
        rank, tp = dist.get_rank(), dist.get_world_size()
        self.weight = nn.Parameter(full_weight.chunk(tp, 0)[rank].clone())
        self.weight.tensor_parallel = True

    def forward(self, x):
        return F.linear(CopyToTP.apply(x), self.weight)


class RowLinear(nn.Module):
    def __init__(self, full_weight):
        super().__init__()
        rank, tp = dist.get_rank(), dist.get_world_size()
        self.weight = nn.Parameter(full_weight.chunk(tp, 1)[rank].clone())
        self.weight.tensor_parallel = True

    def forward(self, x):
        return ReduceFromTP.apply(F.linear(x, self.weight))


class Block(nn.Module):
    def __init__(self, dim, gen):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = ColumnLinear(torch.randn(4 * dim, dim, generator=gen) / math.sqrt(dim))
        self.down = RowLinear(torch.randn(dim, 4 * dim, generator=gen) / math.sqrt(4 * dim))

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, dim=16, depth=2, seed=0):
        super().__init__()
        gen = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        self.blocks = nn.Sequential(*[Block(dim, gen) for _ in range(depth)])
        self.head = nn.Linear(dim, 6)

    def forward(self, x):
        return self.head(self.blocks(x))


def clip_tp_grad_norm(params, max_norm):
    local = torch.zeros(())
    sharded = torch.zeros(())
    for p in params:
        sq = p.grad.pow(2).sum()
        if getattr(p, "tensor_parallel", False):
            sharded += sq
        else:
            local += sq
    dist.all_reduce(sharded)
    coef = (max_norm / ((local + sharded).sqrt() + 1e-6)).clamp(max=1.0)
    for p in params:
        p.grad.mul_(coef)


def batches(steps, seed):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(16, 6, generator=g)
    for _ in range(steps):
        x = torch.randn(24, 16, generator=g)
        yield x, (x @ w).argmax(1)


def main():
    dist.init_process_group("gloo")
    model = Model()
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, lr=0.2, momentum=0.9)
    for step, (x, y) in enumerate(batches(30, seed=5)):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        clip_tp_grad_norm(params, 0.5)
        optimizer.step()
        if step % 10 == 9 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
