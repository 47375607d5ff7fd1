import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return tuple(parts)

    @staticmethod
    def backward(ctx, *grads):
        grads = torch.stack(grads)
        dist.all_reduce(grads)
        return grads[dist.get_rank()]


class AllSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


def mark_sp(module):
    for p in module.parameters():
        p.sequence_parallel = True
    return module


class ParallelMLP(nn.Module):
    def __init__(self, dim, hidden, gen):
        super().__init__()
        rank, tp = dist.get_rank(), dist.get_world_size()
        up = torch.randn(hidden, dim, generator=gen) * dim ** -0.5
        down = torch.randn(dim, hidden, generator=gen) * hidden ** -0.5
        self.up = nn.Parameter(up.chunk(tp, 0)[rank].clone())
        self.down = nn.Parameter(down.chunk(tp, 1)[rank].clone())

    def forward(self, x_local):
        rank, length = dist.get_rank(), x_local.shape[1]
        x = torch.cat(Gather.apply(x_local.contiguous()), dim=1)
        y = AllSum.apply(F.linear(F.gelu(F.linear(x, self.up)), self.down))
        return y[:, rank * length:(rank + 1) * length]


class Layer(nn.Module):
    def __init__(self, dim, gen):
        super().__init__()
        self.norm = mark_sp(nn.LayerNorm(dim))
        self.mlp = ParallelMLP(dim, 4 * dim, gen)

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Transformerish(nn.Module):
    def __init__(self, dim=12, layers=2, out=5):
        super().__init__()
        torch.manual_seed(30)
        gen = torch.Generator().manual_seed(31)
        self.layers = nn.ModuleList(Layer(dim, gen) for _ in range(layers))
        self.final_norm = mark_sp(nn.LayerNorm(dim))
        self.lm_head = mark_sp(nn.Linear(dim, out))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.final_norm(x))


def allreduce_sequence_parallel_grads(model):
    grads = [p.grad for p in model.parameters() if getattr(p, "sequence_parallel", False)]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    offset = 0
    for g in grads:
        g.copy_(flat[offset:offset + g.numel()].view_as(g))
        offset += g.numel()


def stream(steps, batch=6, seq=16, dim=12):
    g = torch.Generator().manual_seed(3)
    w = torch.randn(dim, 5, generator=g)
    for _ in range(steps):
        x = torch.randn(batch, seq, dim, generator=g)
        x = x + torch.linspace(-1, 1, seq)[None, :, None]
        yield x, (x @ w).argmax(-1)


def main():
    dist.init_process_group("gloo")
    rank, tp = dist.get_rank(), dist.get_world_size()
    model = Transformerish()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step, (x, y) in enumerate(stream(32)):
        x_local, y_local = x.chunk(tp, 1)[rank], y.chunk(tp, 1)[rank]
        logits = model(x_local)
        loss = F.cross_entropy(logits.flatten(0, 1), y_local.flatten()) / tp
        opt.zero_grad(set_to_none=True)
        loss.backward()
        allreduce_sequence_parallel_grads(model)
        opt.step()
        if step % 8 == 7:
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            if rank == 0:
                print(f"step {step} loss {shown.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
