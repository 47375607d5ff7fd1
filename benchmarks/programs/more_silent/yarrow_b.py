"""Tensor parallel MLP blocks with sequence parallel norms, written by hand."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


def _gather(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim=0)


def _reduce_scatter(x):
    x = x.contiguous().clone()
    dist.all_reduce(x)
    return x.chunk(dist.get_world_size(), dim=0)[dist.get_rank()].contiguous()


class EnterTensorRegion(torch.autograd.Function):
    """sequence shards -> whole sequence; the gradient goes back reduced to the shards"""

    @staticmethod
    def forward(ctx, x):
        return _gather(x)

    @staticmethod
    def backward(ctx, g):
        return _reduce_scatter(g)


class LeaveTensorRegion(torch.autograd.Function):
    """partial sums over the whole sequence -> finished sequence shards"""

    @staticmethod
    def forward(ctx, x):
        return _reduce_scatter(x)

    @staticmethod
    def backward(ctx, g):
        return _gather(g)


class RMSNorm(nn.Module):
    def __init__(self, dim, sequence_parallel=False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.weight.sequence_parallel = sequence_parallel

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class ParallelMLP(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        world = dist.get_world_size()
        gen = torch.Generator().manual_seed(100 + dist.get_rank())
        self.up = nn.Parameter(torch.randn(hidden // world, dim, generator=gen) * dim ** -0.5)
        self.down = nn.Parameter(torch.randn(dim, hidden // world, generator=gen) * hidden ** -0.5)

    def forward(self, x):
        h = F.linear(EnterTensorRegion.apply(x), self.up)
        return LeaveTensorRegion.apply(F.linear(F.gelu(h), self.down))


class Block(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = RMSNorm(dim, sequence_parallel=True)
        self.mlp = ParallelMLP(dim, hidden)

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Model(nn.Module):
    def __init__(self, vocab=50, dim=32, hidden=128, depth=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim, hidden) for _ in range(depth))
        self.final_norm = RMSNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.embed.weight.sequence_parallel = True
        self.head.weight.sequence_parallel = True

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.final_norm(x))


def reduce_replicated_grads(model):
    """Weights used in the sequence parallel region have seen only their part of the sequence."""
    for p in model.parameters():
        if getattr(p, "sequence_parallel", False) and p.grad is not None:
            dist.all_reduce(p.grad)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)                       # same replicated weights everywhere
    model = Model()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    stream = torch.Generator().manual_seed(77)  # one tensor parallel group: all ranks read the same batch
    for step in range(100):
        first = torch.randint(50, (1, 8), generator=stream)
        ids = (first + 3 * torch.arange(17).unsqueeze(1)) % 50          # [seq, batch]
        src, dst = ids[:-1].chunk(world, 0)[rank], ids[1:].chunk(world, 0)[rank]
        logits = model(src)
        loss = F.cross_entropy(logits.flatten(0, 1), dst.flatten(), reduction="sum") / ids[1:].numel()
        opt.zero_grad()
        loss.backward()
        reduce_replicated_grads(model)
        opt.step()
        if step % 25 == 0:
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            if rank == 0:
                print(f"step {step}: {shown.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
