import torch
from torch.utils.data import Sampler


class BalancedDraw(Sampler):
    """Weighted draw with replacement. One common draw per epoch, each rank keeps every world-th entry."""

    def __init__(self, weights, total, rank, world, seed):
        assert total % world == 0
        self.weights = torch.as_tensor(weights, dtype=torch.double)
        self.total, self.rank, self.world, self.seed = total, rank, world, seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed * 10007 + self.epoch)
        drawn = torch.multinomial(self.weights, self.total, replacement=True, generator=g)
        return iter(drawn[self.rank::self.world].tolist())

    def __len__(self):
        return self.total // self.world
