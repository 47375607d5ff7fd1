import torch


class ClientPool:
    """Non-IID clients: a client holds mostly two classes and between 60 and 300 examples."""

    def __init__(self, n_clients, d=32, classes=10, seed=19):
        g = torch.Generator().manual_seed(seed)
        centers = torch.randn(classes, d, generator=g) * 0.9
        self.sizes = torch.randint(60, 301, (n_clients,), generator=g).tolist()
        self.data = []
        for n in self.sizes:
            fav = torch.randperm(classes, generator=g)[:2]
            y = torch.where(torch.rand(n, generator=g) < 0.8,
                            fav[torch.randint(0, 2, (n,), generator=g)],
                            torch.randint(0, classes, (n,), generator=g))
            self.data.append((centers[y] + torch.randn(n, d, generator=g), y))
        yt = torch.randint(0, classes, (3000,), generator=g)
        self.test = (centers[yt] + torch.randn(3000, d, generator=g), yt)


def assign(cohort, sizes, world):
    """Longest processing time first: clients of a round to ranks by example count."""
    load, plan = [0] * world, [[] for _ in range(world)]
    for c in sorted(cohort, key=lambda c: -sizes[c]):
        r = load.index(min(load))
        plan[r].append(c)
        load[r] += sizes[c]
    return plan
