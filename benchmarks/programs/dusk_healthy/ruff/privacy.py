import torch
from torch.func import functional_call, grad, vmap


class PoissonSampler:
    """Every local sample enters a batch independently with probability q. Batches vary in size and may be empty."""

    def __init__(self, n, q, steps, seed):
        self.n, self.q, self.steps = n, q, steps
        self.gen = torch.Generator().manual_seed(seed)

    def __iter__(self):
        for _ in range(self.steps):
            yield (torch.rand(self.n, generator=self.gen) < self.q).nonzero().flatten()


class PerSampleClipper:
    def __init__(self, model, loss_fn, max_norm):
        self.model, self.max_norm = model, max_norm

        def single(params, x, y):
            return loss_fn(functional_call(model, params, (x[None],)), y[None])
        self.fn = vmap(grad(single), in_dims=(None, 0, 0))

    def clipped_sum(self, x, y):
        params = {k: p.detach() for k, p in self.model.named_parameters()}
        if len(x) == 0:
            return [torch.zeros_like(p) for p in params.values()], 0.0
        g = self.fn(params, x, y)
        norm = torch.stack([v.flatten(1).norm(dim=1) for v in g.values()]).norm(dim=0)
        factor = (self.max_norm / (norm + 1e-6)).clamp(max=1.0)
        return [torch.einsum("b,b...->...", factor, v) for v in g.values()], (factor < 1).float().mean().item()
