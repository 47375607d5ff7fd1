import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class CopyIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad


class SumOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class HeadNorm(nn.Module):
    def __init__(self, heads, hd):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, 1, hd))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:]) * self.weight


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.local, self.hd = heads // size, dim // heads
        full = torch.randn(4, dim, dim) / dim**0.5
        self.qkv = nn.ParameterList(w.chunk(size, 0)[rank].clone() for w in full[:3])
        self.proj = nn.Parameter(full[3].chunk(size, 1)[rank].clone())
        self.norm = nn.LayerNorm(dim)
        self.q_norm, self.k_norm = HeadNorm(self.local, self.hd), HeadNorm(self.local, self.hd)

    def forward(self, h):
        x = CopyIn.apply(self.norm(h))
        q, k, v = (F.linear(x, w).unflatten(-1, (self.local, self.hd)).transpose(1, 2) for w in self.qkv)
        y = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        return h + SumOut.apply(F.linear(y.transpose(1, 2).flatten(2), self.proj))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(6, 24)
        self.layers = nn.ModuleList(Attention(24, 4) for _ in range(2))
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        h = self.inp(x)
        for layer in self.layers:
            h = layer(h)
        return self.out(h.mean(1)).squeeze(-1)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(14)
    model = Model()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    g = torch.Generator().manual_seed(2)
    losses = []
    for step in range(50):
        x = torch.randn(16, 5, 6, generator=g)
        y = x[:, 0, 0] * x[:, 4, 1]
        loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    if dist.get_rank() == 0:
        print([round(v, 4) for v in torch.stack(losses)[::10].tolist()], flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
