import torch


def _draw(n, g, prior):
    c = torch.randn(5, 16, generator=torch.Generator().manual_seed(123)) * 1.1
    y = torch.multinomial(prior, n, replacement=True, generator=g)
    x = c[y] + torch.randn(n, 16, generator=g)
    return torch.where(x > 0, x, 0.3 * x).sin() + 0.1 * x, y


def make_client(rank, seed):
    g = torch.Generator().manual_seed(seed * 50 + rank + 1)
    prior = torch.full((5,), 0.5)
    prior[rank % 5] += 1.5
    prior[(rank + 2) % 5] += 1.0
    return _draw(220 + 60 * rank, g, prior)


def make_server_set(seed):
    return _draw(600, torch.Generator().manual_seed(seed * 50), torch.ones(5))


class ClientLoader:
    """Endless reshuffled mini-batches of one client's own data."""

    def __init__(self, x, y, batch, seed):
        self.x, self.y, self.batch = x, y, batch
        self.g = torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            order = torch.randperm(len(self.x), generator=self.g)
            for s in range(0, len(order) - self.batch + 1, self.batch):
                j = order[s:s + self.batch]
                yield self.x[j], self.y[j]
