import math

import torch
import torch.distributed as dist
from torch.func import functional_call, grad, vmap


class PrivateGradients:
    """Clip every sample's gradient, sum over all processes, add one Gaussian of sigma * C in total.

    Each process contributes an independent share with variance (sigma * C)^2 / world.
    """

    def __init__(self, model, loss_fn, max_norm, sigma, seed):
        self.model, self.max_norm, self.sigma = model, max_norm, sigma
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.noise = torch.Generator().manual_seed(seed + 7919 * self.rank)

        def sample_loss(params, x, y):
            out = functional_call(model, params, (x[None],))
            return loss_fn(out, y[None])

        self.per_sample = vmap(grad(sample_loss), in_dims=(None, 0, 0))

    def __call__(self, x, y, expected_batch):
        params = dict(self.model.named_parameters())
        grads = self.per_sample({k: p.detach() for k, p in params.items()}, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        scale = (self.max_norm / norms.clamp_min(1e-9)).clamp_max(1.0)
        share = self.sigma * self.max_norm / math.sqrt(self.world)
        for name, p in params.items():
            g = torch.einsum("n,n...->...", scale, grads[name])
            g += torch.randn(g.shape, generator=self.noise) * share
            dist.all_reduce(g)
            p.grad = g / expected_batch
        return (norms > self.max_norm).float().mean().item()
