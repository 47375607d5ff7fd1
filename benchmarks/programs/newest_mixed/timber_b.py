import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class CopyIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
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


class ShardedMLP(nn.Module):
    def __init__(self, dim, hidden, rank, world):
        super().__init__()
        part = hidden // world
        g = torch.Generator().manual_seed(hidden)
        w1 = torch.randn(hidden, dim, generator=g) * dim**-0.5
        w2 = torch.randn(dim, hidden, generator=g) * hidden**-0.5
        self.w1 = nn.Parameter(w1[rank * part : (rank + 1) * part].clone())
        self.w2 = nn.Parameter(w2[:, rank * part : (rank + 1) * part].clone())
        self.w1.sharded = self.w2.sharded = True
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        h = CopyIn.apply(self.norm(x))
        return x + SumOut.apply(F.gelu(h @ self.w1.t()) @ self.w2.t())


class Model(nn.Module):
    def __init__(self, rank, world, dim=32):
        super().__init__()
        self.stem = nn.Linear(20, dim)
        self.layers = nn.ModuleList(ShardedMLP(dim, 64, rank, world) for _ in range(3))
        self.head = nn.Linear(dim, 8)

    def forward(self, x):
        h = self.stem(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


def clip_gradients(params, max_norm):
    params = [p for p in params if p.grad is not None]
    shared = sum(p.grad.pow(2).sum() for p in params if not getattr(p, "sharded", False))
    split = sum(p.grad.pow(2).sum() for p in params if getattr(p, "sharded", False))
    norm = (shared + split).sqrt()
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for p in params:
        p.grad.mul_(scale)
    return norm


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    model = Model(rank, world)
    opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    g = torch.Generator().manual_seed(77)
    w = torch.randn(20, 8, generator=g)
    for step in range(200):
        x = torch.randn(32, 20, generator=g)
        loss = F.cross_entropy(model(x), (x @ w).argmax(-1))
        opt.zero_grad()
        loss.backward()
        norm = clip_gradients(model.parameters(), 0.3)
        opt.step()
        if rank == 0 and step % 40 == 0:
            print(f"step {step} loss {loss.item():.4f} norm {norm.item():.3f}", flush=True)
    shared_weights = [model.stem, model.head]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
