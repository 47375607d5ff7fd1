import torch


def make_regression(seed, n, dim, noise):
    gen = torch.Generator().manual_seed(seed)
    basis = torch.randn(dim, generator=torch.Generator().manual_seed(7))
    x = torch.randn(n, dim, generator=gen)
    y = torch.sin(x @ basis / dim ** 0.5 * 2.0) + noise * torch.randn(n, generator=gen)
    return x, y.unsqueeze(1)


class Splits:
    """Training and validation rows that belong to this rank."""

    def __init__(self, rank, world_size, dim=48, n_train=4096, n_val=384, noise=0.6):
        x, y = make_regression(11, n_train, dim, noise)
        self.train = x[rank::world_size], y[rank::world_size]
        x, y = make_regression(12, n_val, dim, noise)
        self.val = x[rank::world_size], y[rank::world_size]

    def batches(self, epoch, batch_size):
        x, y = self.train
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for i in range(0, len(x) - batch_size + 1, batch_size):
            idx = order[i:i + batch_size]
            yield x[idx], y[idx]
