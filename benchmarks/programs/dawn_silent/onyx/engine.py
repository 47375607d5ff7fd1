"""Tensor-parallel pieces: collectives with gradients, and the step engine."""
import torch
import torch.distributed as dist


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g


copy_to_tp = _Copy.apply
reduce_from_tp = _Reduce.apply


def finalize_model_grads(model):
    """Sum the gradients of parameters that every TP rank holds but sees only its heads of."""
    for p in model.parameters():
        if getattr(p, "sum_over_tp", False) and p.grad is not None:
            dist.all_reduce(p.grad)


class StepEngine:
    """Either `train(batch)` in one go, or begin / microbatch / finish from an outer loop."""

    def __init__(self, model, loss_fn, optimizer):
        self.model, self.loss_fn, self.optimizer = model, loss_fn, optimizer
        self.pending = 0

    def train(self, batch):
        self.begin()
        loss = self.microbatch(batch)
        finalize_model_grads(self.model)
        self.optimizer.step()
        return loss

    def begin(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.pending = 0

    def microbatch(self, batch):
        loss = self.loss_fn(self.model, batch)
        loss.backward()
        self.pending += 1
        return loss.item()

    def finish(self):
        for p in self.model.parameters():
            if p.grad is not None:
                p.grad.div_(self.pending)
        finalize_model_grads(self.model)
        self.optimizer.step()
