"""Stochastic depth under fully_shard: the layers to leave out are drawn alike on every rank."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

STEPS, BATCH, D, DEPTH = 14, 16, 32, 4


class DepthDraw:
    """One generator for all ranks; separate from the default one, which differs by rank."""

    def __init__(self, depth, rate, seed):
        self.keep = torch.linspace(1.0, 1.0 - rate, depth)
        self.gen = torch.Generator().manual_seed(seed)

    def __call__(self):
        return (torch.rand(len(self.keep), generator=self.gen) < self.keep).tolist()


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.ff = nn.Sequential(nn.Linear(D, 3 * D), nn.GELU(), nn.Dropout(0.1), nn.Linear(3 * D, D))

    def forward(self, x):
        return x + self.ff(self.norm(x))


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(9, D), nn.Linear(D, 1)
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))

    def forward(self, x, keep):
        h = self.inp(x)
        for layer, k in zip(self.layers, keep):
            if k:
                h = checkpoint(layer, h, use_reentrant=False)
        return self.out(h)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Tower()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    draw = DepthDraw(DEPTH, rate=0.5, seed=42)
    torch.manual_seed(100 + rank)
    for step in range(STEPS):
        x = torch.randn(BATCH, 9)
        y = x[:, :1] * x[:, 1:2] + x[:, 2:3]
        keep = draw()
        loss = F.mse_loss(model(x, keep), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        if rank == 0 and step % 4 == 0:
            print(f"step {step} depth {sum(keep)} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
