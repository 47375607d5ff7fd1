import torch


class ClientPool:
    """Non-iid client data sets; client c lives on rank c % world."""

    def __init__(self, n_clients, classes=6, dim=24, seed=11):
        g = torch.Generator().manual_seed(seed)
        self.centres = 1.6 * torch.randn(classes, dim, generator=g)
        self.sizes = torch.randint(96, 400, (n_clients,), generator=g).tolist()
        self.prefs = torch.rand(n_clients, classes, generator=g) ** 3 + 0.02
        self.classes, self.dim, self.n = classes, dim, n_clients

    def data(self, c):
        g = torch.Generator().manual_seed(1000 + c)
        y = torch.multinomial(self.prefs[c], self.sizes[c], replacement=True, generator=g)
        return self.centres[y] + torch.randn(len(y), self.dim, generator=g), y

    def test(self, n=1200):
        g = torch.Generator().manual_seed(999)
        y = torch.arange(n) % self.classes
        return self.centres[y] + torch.randn(n, self.dim, generator=g), y
