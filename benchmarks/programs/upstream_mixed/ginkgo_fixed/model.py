import torch
from torch import nn
from torch.distributed.tensor import Replicate, distribute_tensor

from moe import MoE


class Model(nn.Module):
    def __init__(self, mesh, vocab=128, width=32, hidden=64, experts=4, depth=2):
        super().__init__()
        self.embed = nn.Parameter(distribute_tensor(torch.randn(vocab, width), mesh, [Replicate()]))
        self.layers = nn.ModuleList(MoE(mesh, width, hidden, experts) for _ in range(depth))
        self.head = nn.Parameter(distribute_tensor(torch.randn(vocab, width) * width ** -0.5, mesh, [Replicate()]))

    def forward(self, ids):
        h = nn.functional.embedding(ids, self.embed)
        for layer in self.layers:
            h = h + layer(h)
        return h @ self.head.t()
