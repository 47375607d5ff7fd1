import torch
from torch.utils.data import IterableDataset


class Resampled(IterableDataset):
    """Endless draws with replacement from a pool; each consumer owns one generator."""

    def __init__(self, pool, rank, seed, state=None):
        self.x, self.y = pool
        self.g = torch.Generator().manual_seed(7919 * (rank + 1) + seed)
        if state is not None:
            self.g.set_state(state)

    def __iter__(self):
        while True:
            i = torch.randint(len(self.x), (1,), generator=self.g).item()
            yield self.x[i], self.y[i]

    def state(self):
        return self.g.get_state()


def pool(n, seed):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(40, generator=torch.Generator().manual_seed(2))
    x = torch.randn(n, 40, generator=g)
    y = torch.sin(x @ w / 4) + 0.1 * torch.randn(n, generator=g)
    return x, y
