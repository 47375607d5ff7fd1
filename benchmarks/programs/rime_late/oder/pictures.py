import torch
from torch.utils.data import Dataset


class Blobs(Dataset):
    """16x16 pictures with one bright rectangle; part of them carry a box annotation."""

    def __init__(self, count, annotated, seed):
        gen = torch.Generator().manual_seed(seed)
        corner = torch.rand(count, 2, generator=gen) * 0.5
        size = 0.2 + torch.rand(count, 2, generator=gen) * 0.3
        self.box = torch.cat([corner, size], 1)
        self.kind = (size[:, 0] > size[:, 1]).long() + 2 * (corner[:, 0] > 0.25).long()
        self.has_box = torch.rand(count, generator=gen) < annotated
        grid = torch.arange(16) / 16.0
        row = (grid >= corner[:, :1]) & (grid < corner[:, :1] + size[:, :1])
        col = (grid >= corner[:, 1:]) & (grid < corner[:, 1:] + size[:, 1:])
        noise = 0.2 * torch.randn(count, 16, 16, generator=gen)
        self.image = ((row.unsqueeze(2) & col.unsqueeze(1)).float() + noise).unsqueeze(1)

    def __len__(self):
        return len(self.kind)

    def __getitem__(self, i):
        return self.image[i], self.kind[i], self.box[i], self.has_box[i]
