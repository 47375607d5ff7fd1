import numpy as np
import torch


class TableBatches:
    """Iterates numpy tables in batches, without worker processes.

    All processes build the same order for an epoch and take alternating batches of it;
    the tail that does not fill a round is left out of the epoch.
    """

    def __init__(self, x, y, batch_size, rank, world, shuffle, seed=0):
        self.x, self.y = x, y
        self.batch_size, self.rank, self.world = batch_size, rank, world
        self.shuffle, self.seed = shuffle, seed
        self.epoch = 0

    def __len__(self):
        return len(self.x) // (self.batch_size * self.world)

    def __iter__(self):
        order = np.arange(len(self.x))
        if self.shuffle:
            order = np.random.default_rng((self.seed, self.epoch)).permutation(order)
        self.epoch += 1
        for k in range(len(self)):
            at = (k * self.world + self.rank) * self.batch_size
            pick = order[at:at + self.batch_size]
            yield torch.from_numpy(self.x[pick]), torch.from_numpy(self.y[pick])


def tables(n, seed, features=16):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, features)).astype(np.float32)
    score = x[:, 0] * x[:, 1] + np.sin(2 * x[:, 2]) + 0.5 * x[:, 3] + 0.4 * rng.standard_normal(n)
    return x, (score > 0).astype(np.float32)
