import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap


class PoissonSampler:
    """Each step every record of this rank's shard enters the lot independently with probability q."""

    def __init__(self, n, q, seed):
        self.n, self.q = n, q
        self.gen = torch.Generator().manual_seed(seed)

    def draw(self):
        return (torch.rand(self.n, generator=self.gen) < self.q).nonzero().squeeze(1)


class DPSGD:
    """Per-record clipping on the rank that holds the record, Gaussian noise split over the ranks: each adds variance
    (sigma C)^2 / world, so that the sum carries (sigma C)^2. The divisor is the expected lot size."""

    def __init__(self, net, clip, sigma, expected_lot, seed):
        self.net, self.clip, self.expected = net, clip, expected_lot
        self.world = dist.get_world_size()
        self.std = sigma * clip / math.sqrt(self.world)
        self.gen = torch.Generator().manual_seed(seed)
        self.per_record = vmap(grad(self._loss, has_aux=True), in_dims=(None, 0, 0))
        self.n = sum(p.numel() for p in net.parameters())

    def _loss(self, weights, x, y):
        out = functional_call(self.net, weights, (x.unsqueeze(0),))
        loss = F.cross_entropy(out, y.unsqueeze(0))
        return loss, loss.detach()

    @torch.no_grad()
    def fill_grads(self, x, y):
        """Sets .grad on all parameters; returns [sum of losses, records] over all ranks."""
        names = [n for n, _ in self.net.named_parameters()]
        flat = torch.randn(self.n + 2, generator=self.gen) * self.std
        flat[-2:] = 0.0
        for xb, yb in zip(x.split(64), y.split(64)):
            if not len(xb):
                continue
            with torch.enable_grad():
                g, loss = self.per_record(dict(self.net.named_parameters()), xb, yb)
            rows = torch.cat([g[n].detach().flatten(1) for n in names], 1)
            scale = (self.clip / (rows.norm(dim=1) + 1e-6)).clamp(max=1.0)
            flat[:-2] += scale @ rows
            flat[-2] += loss.detach().sum()
            flat[-1] += len(xb)
        dist.all_reduce(flat)
        i = 0
        for p in self.net.parameters():
            p.grad = flat[i : i + p.numel()].view_as(p) / self.expected
            i += p.numel()
        return flat[-2:]
