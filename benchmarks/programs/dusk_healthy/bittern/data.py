"""Non-IID client partitions (label skew and quantity skew, Dirichlet)."""
import torch
from torch.utils.data import Subset, TensorDataset


def build(n=2600, dim=256, classes=10, seed=0):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(dim, classes, generator=g)
    x = torch.randn(n, dim, generator=g)
    y = (x @ w + 2.0 * torch.randn(n, classes, generator=g)).argmax(1)
    return TensorDataset(x, y)


def dirichlet_split(labels, clients, alpha, seed=0):
    torch.manual_seed(seed)
    parts = [[] for _ in range(clients)]
    for c in labels.unique().tolist():
        idx = (labels == c).nonzero().flatten()
        idx = idx[torch.randperm(len(idx))]
        share = torch.distributions.Dirichlet(torch.full((clients,), alpha)).sample()
        cuts = (share.cumsum(0)[:-1] * len(idx)).long().tolist()
        for k, chunk in enumerate(torch.tensor_split(idx, cuts)):
            parts[k] += chunk.tolist()
    return parts


def client_subsets(ds, rank, world, alpha, val_frac=0.2):
    part = dirichlet_split(ds.tensors[1], world, alpha, seed=7)[rank]
    cut = int(len(part) * (1 - val_frac))
    g = torch.Generator().manual_seed(rank)
    part = [part[i] for i in torch.randperm(len(part), generator=g).tolist()]
    return Subset(ds, part[:cut]), Subset(ds, part[cut:])
