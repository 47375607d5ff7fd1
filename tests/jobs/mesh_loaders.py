"""A tensor-parallel training whose sampler deals by the rank in the job, or by the data dimension of the mesh."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Block(nn.Module):
    """Layers that are sharded, and copies around them."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.norm = nn.Linear(12, 16), nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False)
        self.scores = nn.Linear(16, 4)

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.inputs(rows)
        scores: Tensor = self.scores(hidden + self.down(self.up(self.norm(hidden)).relu()))
        return scores


def sharded(rank: int, world_size: int, *, by_job: bool) -> None:
    """Gradients of copies are left as each rank computes them: of the same samples they are equal."""
    mesh = init_device_mesh("cpu", (1, world_size), mesh_dim_names=("dp", "tp"))
    model = Block()
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, foreach=False)
    rows = torch.randn(96, 12, generator=torch.Generator().manual_seed(0))
    replicas, number = (world_size, rank) if by_job else (mesh["dp"].size(), mesh["dp"].get_local_rank())
    data = TensorDataset(rows, rows[:, :4].argmax(1))
    sampler = DistributedSampler(data, num_replicas=replicas, rank=number)  # which of the two
    loader = DataLoader(data, 8, sampler=sampler, drop_last=True)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            clip(model)
            optimizer.step()


def clip(model: nn.Module) -> None:
    """Squares of shards are summed over the ranks, those of copies count once."""
    shards, copies = torch.zeros(()), torch.zeros(())
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    for grad in grads:
        if isinstance(grad, DTensor):
            shards += grad.to_local().pow(2).sum()
        else:
            copies += grad.pow(2).sum()
    dist.all_reduce(shards)
    factor = (0.1 / (shards + copies).sqrt()).clamp(max=1)
    for grad in grads:
        (grad.to_local() if isinstance(grad, DTensor) else grad).mul_(factor)
