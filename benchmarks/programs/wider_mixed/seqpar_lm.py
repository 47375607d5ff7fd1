"""Tensor parallel feed-forward language model whose residual stream is split along the sequence (2 x DP, 2 x TP)."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

from mappings import GatherFromSequence, ReduceScatterToSequence


def sequence_parallel(module):
    for p in module.parameters():
        p.sequence_parallel = True
    return module


class ParallelMLP(nn.Module):
    def __init__(self, dim, hidden, group):
        super().__init__()
        self.group = group
        n, r = dist.get_world_size(group), dist.get_rank(group)
        g = torch.Generator().manual_seed(500 + r)
        self.up = nn.Parameter(torch.randn(hidden // n, dim, generator=g) * 0.1)
        self.down = nn.Parameter(torch.randn(dim, hidden // n, generator=g) * 0.1)

    def forward(self, x):
        x = GatherFromSequence.apply(x, self.group)
        x = F.gelu(F.linear(x, self.up))
        return ReduceScatterToSequence.apply(F.linear(x, self.down), self.group)


class Block(nn.Module):
    def __init__(self, dim, group):
        super().__init__()
        self.norm = sequence_parallel(nn.LayerNorm(dim))
        self.conv = sequence_parallel(nn.Linear(dim, dim))
        self.mlp = ParallelMLP(dim, 4 * dim, group)

    def forward(self, x):
        h = self.norm(x)
        return x + torch.tanh(self.conv(h)) + self.mlp(h)


class Model(nn.Module):
    def __init__(self, group, vocab=48, dim=32, depth=2, tp_rank=0, tp=2):
        super().__init__()
        self.tp_rank, self.tp = tp_rank, tp
        self.embed = sequence_parallel(nn.Embedding(vocab, dim))
        self.blocks = nn.ModuleList(Block(dim, group) for _ in range(depth))
        self.final_norm = nn.LayerNorm(dim)
        self.head = sequence_parallel(nn.Linear(dim, vocab, bias=False))

    def forward(self, ids, targets):
        part = lambda t: t.chunk(self.tp, 1)[self.tp_rank]
        h = self.embed(part(ids))
        for b in self.blocks:
            h = b(h)
        logits = self.head(self.final_norm(h))
        return F.cross_entropy(logits.flatten(0, 1), part(targets).flatten(), reduction="sum") / targets.numel()


def finalize_grads(model, mesh):
    dp, tp = mesh.get_group("dp"), mesh.get_group("tp")
    shared = [p.grad for p in model.parameters() if getattr(p, "sequence_parallel", False)]
    flat = torch.cat([g.flatten() for g in shared])
    dist.all_reduce(flat, group=tp)
    i = 0
    for g in shared:
        g.copy_(flat[i:i + g.numel()].view_as(g))
        i += g.numel()
    for p in model.parameters():
        dist.all_reduce(p.grad, group=dp)
        p.grad.div_(mesh["dp"].size())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=30)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = Model(mesh.get_group("tp"), tp_rank=mesh.get_local_rank("tp"))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(10 + mesh.get_local_rank("dp"))
    for step in range(args.steps):
        start = torch.randint(0, 48, (8, 1), generator=gen)
        seq = (start + torch.randint(1, 4, (8, 1), generator=gen) * torch.arange(17)) % 48
        loss = model(seq[:, :-1], seq[:, 1:])
        opt.zero_grad()
        loss.backward()
        finalize_grads(model, mesh)
        opt.step()
        shown = loss.detach().clone()
        dist.all_reduce(shown, group=mesh.get_group("tp"))
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step} loss {shown.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
