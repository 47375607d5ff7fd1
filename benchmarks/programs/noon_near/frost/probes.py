import contextlib

import torch
import torch.distributed as dist
import torch.nn as nn


class ActivationStats:
    """Running mean / std / dead fraction per watched module, kept as plain floats."""

    def __init__(self):
        self.sums = {}

    def hook(self, name):
        def fn(module, inputs, output):
            out = output.detach()
            row = self.sums.setdefault(name, [0, 0.0, 0.0, 0.0])
            row[0] += 1
            row[1] += out.mean().item()
            row[2] += out.std().item()
            row[3] += (out <= 0).float().mean().item()
        return fn

    def report(self):
        return {k: tuple(round(v / r[0], 3) for v in r[1:]) for k, r in self.sums.items()}


@contextlib.contextmanager
def watching(model, kinds=(nn.ReLU,)):
    stats = ActivationStats()
    handles = [m.register_forward_hook(stats.hook(n)) for n, m in model.named_modules() if isinstance(m, kinds)]
    try:
        yield stats
    finally:
        for h in handles:
            h.remove()


class LinearProbe:
    """A new head every epoch on the features seen by a hook that lives as long as the probe."""

    def __init__(self, layer, dim, classes, seed):
        g = torch.Generator().manual_seed(seed)
        self.head = nn.Linear(dim, classes)
        with torch.no_grad():
            self.head.weight.copy_(torch.randn(classes, dim, generator=g) * 0.01)
            self.head.bias.zero_()
        self.opt = torch.optim.SGD(self.head.parameters(), lr=0.2)
        self.features = None
        self.handle = layer.register_forward_hook(self._take)

    def _take(self, module, inputs, output):
        self.features = output.detach()

    def fit_one(self, y):
        loss = nn.functional.cross_entropy(self.head(self.features), y)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        grad = torch.cat([self.head.weight.grad, self.head.bias.grad.unsqueeze(1)], 1)
        dist.all_reduce(grad)
        grad /= dist.get_world_size()
        self.head.weight.grad.copy_(grad[:, :-1])
        self.head.bias.grad.copy_(grad[:, -1])
        self.opt.step()
        self.features = None
        return loss.item()

    def close(self):
        self.handle.remove()
        self.features = None
