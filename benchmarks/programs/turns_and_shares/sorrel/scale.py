"""Running scale of observations, collected on every process and merged at set times."""
import torch
import torch.distributed as dist


class RunningScale:
    """`observe` fills a local ledger; `merge` adds all ledgers to the common statistics."""

    def __init__(self, size):
        self.count = torch.zeros((), dtype=torch.double)
        self.mean = torch.zeros(size, dtype=torch.double)
        self.m2 = torch.zeros(size, dtype=torch.double)
        self.clear()

    def clear(self):
        size = len(self.mean)
        self.ledger = torch.zeros(2 * size + 1, dtype=torch.double)

    def observe(self, x):
        x = x.double()
        self.ledger += torch.cat([x.sum(0), x.square().sum(0), torch.tensor([float(len(x))], dtype=torch.double)])

    def merge(self):
        dist.all_reduce(self.ledger)
        size = len(self.mean)
        n = self.ledger[-1]
        if n > 0:
            mean = self.ledger[:size] / n
            m2 = (self.ledger[size:-1] - n * mean.square()).clamp(min=0)
            total = self.count + n
            gap = mean - self.mean
            self.m2 = self.m2 + m2 + gap.square() * self.count * n / total
            self.mean = self.mean + gap * n / total
            self.count = total
        self.clear()

    def __call__(self, x):
        std = (self.m2 / self.count.clamp(min=1)).sqrt().clamp(min=1e-3)
        return ((x.double() - self.mean) / std).clamp(-8, 8).float()

    def state_dict(self):
        return {"count": self.count, "mean": self.mean, "m2": self.m2}
