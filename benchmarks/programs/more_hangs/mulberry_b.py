"""Sharded two-tower model on a stream that mixes captions with plain text."""
import argparse
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


@dataclass
class Sample:
    tokens: torch.Tensor
    label: torch.Tensor
    patches: torch.Tensor | None


class PatchEncoder(nn.Module):
    def __init__(self, patch, dim):
        super().__init__()
        self.proj = nn.Linear(patch, dim)
        self.mix = nn.Linear(dim, dim)

    def forward(self, patches):
        return self.mix(torch.relu(self.proj(patches))).mean(1)


class TextEncoder(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.mix = nn.Linear(dim, dim)

    def forward(self, tokens):
        return self.mix(self.emb(tokens)).mean(1)


class Reader(nn.Module):
    def __init__(self, patch=18, vocab=64, dim=32, classes=4):
        super().__init__()
        self.patch = patch
        self.text = TextEncoder(vocab, dim)
        self.vision = PatchEncoder(patch, dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, sample):
        h = self.text(sample.tokens)
        patches = sample.patches
        if patches is None:
            patches = torch.zeros(len(sample.tokens), 1, self.patch)
        present = 1.0 if sample.patches is not None else 0.0
        h = h + present * self.vision(patches)
        return self.head(h)


class Stream:
    def __init__(self, rank, steps, plain):
        self.g = torch.Generator().manual_seed(rank)
        self.rank, self.steps, self.plain = rank, steps, plain

    def __iter__(self):
        for s in range(self.steps):
            tokens = torch.randint(0, 64, (6, 10), generator=self.g)
            label = torch.randint(0, 4, (6,), generator=self.g)
            has_picture = (s * 2 + self.rank) not in self.plain
            patches = torch.randn(6, 9, 18, generator=self.g) if has_picture else None
            yield Sample(tokens, label, patches)


def shard(model, mesh):
    fully_shard(model.vision, mesh=mesh)
    fully_shard(model.text, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--plain", type=int, nargs="*", default=[9])
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(2)
    model = shard(Reader(), mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for s, sample in enumerate(Stream(rank, a.steps, set(a.plain))):
        loss = nn.functional.cross_entropy(model(sample), sample.label)
        loss.backward()
        opt.step()
        opt.zero_grad()
        if rank == 0:
            print(f"step {s} loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
