import torch
from torch.utils.data import Dataset


class Catalogue(Dataset):
    """Product photos (as feature vectors) with a long-tailed number of shots per product."""

    def __init__(self, products, first=0, dim=64, seed=0):
        g = torch.Generator().manual_seed(seed)
        shots = (2 + 60 / (1 + torch.arange(products).float()) ** 0.7).long()
        self.labels = torch.repeat_interleave(torch.arange(products), shots) + first
        basis = torch.randn(12, dim, generator=torch.Generator().manual_seed(77))
        proto = torch.randn(products, 12, generator=g)
        code = proto[self.labels - first] + 0.7 * torch.randn(len(self.labels), 12, generator=g)
        self.x = torch.tanh(code @ basis / 3) + 0.5 * torch.randn(len(self.labels), dim, generator=g)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.x[i], self.labels[i]

    def indices_of(self, products):
        return torch.isin(self.labels, torch.as_tensor(products)).nonzero().flatten().tolist()
