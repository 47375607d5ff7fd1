import torch
from torch.nn import functional as F
from torch.utils.data import Sampler, TensorDataset


def long_tail(n, seed, classes=8):
    """Class c is half as frequent as class c-1, roughly."""
    g = torch.Generator().manual_seed(33)
    proto = F.interpolate(torch.randn(classes, 3, 4, 4, generator=g), size=16)
    g = torch.Generator().manual_seed(seed)
    prior = torch.tensor([0.65 ** c for c in range(classes)])
    y = torch.multinomial(prior, n, replacement=True, generator=g)
    return TensorDataset(0.7 * proto[y] + torch.randn(n, 3, 16, 16, generator=g), y)


class BalancedSampler(Sampler):
    """Class-balanced draws with replacement; each process has a stream of its own over the whole set."""

    def __init__(self, labels, num_samples, rank, seed):
        freq = torch.bincount(labels).float()
        self.weights = 1.0 / freq[labels]
        self.num_samples, self.rank, self.seed, self.epoch = num_samples, rank, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.num_samples

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + 10007 * self.rank + self.epoch)
        return iter(torch.multinomial(self.weights, self.num_samples, replacement=True, generator=g).tolist())
