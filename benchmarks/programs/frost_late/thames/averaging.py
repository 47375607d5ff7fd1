import copy

import torch


class Average:
    def __init__(self, model, decay):
        self.decay, self.n = decay, 0
        self.shadow = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        self.n += 1
        d = min(self.decay, (1 + self.n) / (10 + self.n))
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.mul_(d).add_(p, alpha=1 - d)


class Meter:
    def __init__(self):
        self.sum, self.n = 0.0, 0

    def add(self, v):
        self.sum, self.n = self.sum + v, self.n + 1

    @property
    def mean(self):
        return self.sum / max(self.n, 1)
