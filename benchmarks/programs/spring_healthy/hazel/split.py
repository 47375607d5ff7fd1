import collections

import torch
import torch.nn as nn


class WeightWork:
    """Weight gradients that have been put off, one entry a micro-batch."""

    def __init__(self):
        self.open, self.queue = [], collections.deque()

    def add(self, fn):
        self.open.append(fn)

    def close(self):
        self.queue.append(self.open)
        self.open = []

    def run_one(self):
        if self.queue:
            for fn in self.queue.popleft():
                fn()

    def drain(self):
        while self.queue:
            self.run_one()


WORK = WeightWork()


class _LaterLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias = weight, bias
        return torch.addmm(bias, x, weight.t())

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        weight, bias = ctx.weight, ctx.bias

        def later():
            dw, db = dy.t() @ x, dy.sum(0)
            weight.grad = dw if weight.grad is None else weight.grad.add_(dw)
            bias.grad = db if bias.grad is None else bias.grad.add_(db)

        WORK.add(later)
        return dy @ weight if ctx.needs_input_grad[0] else None, None, None


class LaterLinear(nn.Linear):
    def forward(self, x):
        return _LaterLinear.apply(x, self.weight, self.bias)


class Block(nn.Module):
    def __init__(self, dim, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.a, self.b = LaterLinear(dim, 2 * dim), LaterLinear(2 * dim, dim)

    def forward(self, x):
        return x + 0.5 * self.b(torch.tanh(self.a(x)))
