import torch
import torch.distributed as dist
import torch.nn as nn


class StageEngine:
    """One stage of a layer pipeline: one forward and one backward wave per micro-batch (1F1B not needed here)."""

    def __init__(self, module, rank, world, in_shape, out_shape):
        self.module, self.rank = module, rank
        self.first, self.last = rank == 0, rank == world - 1
        self.in_shape, self.out_shape = in_shape, out_shape
        self.cache = []

    def forward(self, x=None):
        if not self.first:
            x = torch.empty(self.in_shape)
            dist.recv(x, src=self.rank - 1)
            x.requires_grad_(True)
        y = self.module(x)
        if not self.last:
            dist.send(y.detach().contiguous(), dst=self.rank + 1)
        self.cache.append((x, y))
        return y

    def backward(self, loss=None):
        x, y = self.cache.pop(0)
        if self.last:
            loss.backward()
        else:
            grad = torch.empty(self.out_shape)
            dist.recv(grad, src=self.rank + 1)
            y.backward(grad)
        if not self.first:
            dist.send(x.grad, dst=self.rank - 1)


def scale_to_norm(module, limit):
    """Scale this stage's gradients by limit / norm, the norm being taken over all the stages."""
    grads = [p.grad for p in module.parameters() if p.grad is not None]
    square = torch.stack([g.pow(2).sum() for g in grads]).sum()
    dist.all_reduce(square, op=dist.ReduceOp.SUM)
    norm = square.sqrt().item()
    if norm > limit:
        for g in grads:
            g.mul_(limit / (norm + 1e-6))
    return norm
