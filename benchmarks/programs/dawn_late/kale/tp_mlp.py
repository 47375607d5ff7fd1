"""Tensor parallel feed-forward network: column split then row split, norms and biases replicated."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

DIM, HIDDEN, CLASSES, STEPS, BATCH = 64, 256, 12, 80, 128


class CopyIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g


class SumOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class ParallelFF(nn.Module):
    def __init__(self, world):
        super().__init__()
        part = HIDDEN // world
        self.norm = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, part)
        self.down = nn.Linear(part, DIM, bias=False)
        self.bias = nn.Parameter(torch.zeros(DIM))
        for p in (self.up.weight, self.up.bias, self.down.weight):
            p.split_over_tp = True

    def forward(self, x):
        h = F.gelu(self.up(CopyIn.apply(self.norm(x))))
        return x + SumOut.apply(self.down(h)) + self.bias


def clip_tp(params, max_norm):
    sharded = [p.grad for p in params if getattr(p, "split_over_tp", False)]
    whole = [p.grad for p in params if not getattr(p, "split_over_tp", False)]
    square = torch.stack([g.square().sum() for g in sharded]).sum()
    dist.all_reduce(square)
    square = square + torch.stack([g.square().sum() for g in whole]).sum()
    total = square.sqrt()
    nn.utils.clip_grads_with_norm_(params, max_norm, total)
    return total


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    layers = [ParallelFF(world) for _ in range(3)]
    model = nn.Sequential(nn.Linear(20, DIM), *layers, nn.LayerNorm(DIM), nn.Linear(DIM, CLASSES))
    torch.manual_seed(40 + rank)  # the shards differ, the replicated parameters do not
    for layer in layers:
        layer.up.reset_parameters()
        nn.init.normal_(layer.down.weight, std=0.02)
    params = list(model.parameters())
    opt = torch.optim.SGD(params, lr=0.3, momentum=0.9)
    gen = torch.Generator().manual_seed(6)  # all ranks of the tensor group see the same rows
    centres = 1.2 * torch.randn(CLASSES * 4, 20, generator=gen)
    for step in range(STEPS):
        pick = torch.randint(CLASSES * 4, (BATCH,), generator=gen)
        x = centres[pick] + torch.randn(BATCH, 20, generator=gen)
        loss = F.cross_entropy(model(x), pick % CLASSES)
        opt.zero_grad()
        loss.backward()
        norm = clip_tp(params, 0.4)
        opt.step()
        if rank == 0 and step % 10 == 0:
            print(f"{step:3d} loss {loss.item():.3f} norm {norm.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
