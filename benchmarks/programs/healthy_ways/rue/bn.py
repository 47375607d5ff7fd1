"""Batch normalisation over the rows of every rank."""
import torch
import torch.distributed as dist
import torch.nn as nn


class SumOverRanks(torch.autograd.Function):
    """Sum in both directions: everybody used the sum, so everybody's gradient comes back."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class SharedBatchNorm(nn.Module):
    def __init__(self, channels, eps=1e-5, momentum=0.1):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("var", torch.ones(channels))
        self.eps, self.momentum = eps, momentum

    def forward(self, x):
        dims = [0] + list(range(2, x.dim()))
        shape = [1, -1] + [1] * (x.dim() - 2)
        if self.training:
            count = x.new_tensor([x.numel() / x.shape[1]])
            sums = SumOverRanks.apply(torch.cat([x.sum(dims), x.pow(2).sum(dims), count]))
            c = x.shape[1]
            n = sums[-1].detach()
            mean = sums[:c] / n
            var = (sums[c:2 * c] / n - mean.pow(2)).clamp(min=0)
            with torch.no_grad():
                self.mean.lerp_(mean, self.momentum)
                self.var.lerp_(var * n / (n - 1), self.momentum)
        else:
            mean, var = self.mean, self.var
        y = (x - mean.view(shape)) * (var + self.eps).rsqrt().view(shape)
        return y * self.weight.view(shape) + self.bias.view(shape)
