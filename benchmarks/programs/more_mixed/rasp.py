"""Tensor-parallel MLP language model: one replica spread over the ranks."""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class FeedForward(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.up = nn.Linear(d, h)
        self.down = nn.Linear(h, d)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self, vocab=32, ctx=4, d=16, h=64, depth=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(FeedForward(ctx * d, h) for _ in range(depth))
        self.head = nn.Linear(ctx * d, vocab)

    def forward(self, ids):
        x = self.emb(ids).flatten(1)
        for b in self.blocks:
            x = x + b(x)
        return self.head(x)


def apply_tp(model, mesh):
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


class Corpus:
    """The same stream on every rank: all ranks work on one replica."""

    def __init__(self, seed, vocab):
        self.gen = torch.Generator().manual_seed(seed)
        self.vocab = vocab

    def next(self, n):
        start = torch.randint(0, self.vocab, (n, 1), generator=self.gen)
        step = torch.randint(1, 4, (n, 1), generator=self.gen)
        seq = (start + step * torch.arange(5)) % self.vocab
        return seq[:, :4], seq[:, 4]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--bs", type=int, default=64)
    ap.add_argument("--lr", type=float, default=5e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = apply_tp(Model(), mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, foreach=False)
    corpus = Corpus(77, 32)
    for step in range(args.steps):
        ids, target = corpus.next(args.bs)
        loss = F.cross_entropy(model(ids), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
