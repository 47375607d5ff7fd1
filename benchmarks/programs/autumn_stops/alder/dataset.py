import torch
from torch.utils.data import Dataset


class PatchDataset(Dataset):
    """Random patches out of large synthetic tiles."""

    def __init__(self, cache, tiles, patches_per_tile, size=24):
        self.cache = cache
        self.tiles = tiles
        self.patches_per_tile = patches_per_tile
        self.size = size

    def __len__(self):
        return len(self.tiles) * self.patches_per_tile

    @staticmethod
    def render(key):
        gen = torch.Generator().manual_seed(key)
        yy, xx = torch.meshgrid(torch.arange(96.0), torch.arange(96.0), indexing="ij")
        label = key % 4
        wave = torch.sin(xx * (0.1 + 0.1 * label) + yy * 0.07 * (label + 1))
        return wave + 0.3 * torch.randn(96, 96, generator=gen), label

    def warm(self, count):
        for key in self.tiles[:count]:
            self.cache.get(key, self.render)

    def __getitem__(self, i):
        image, label = self.cache.get(self.tiles[i // self.patches_per_tile], self.render)
        gen = torch.Generator().manual_seed(i)
        top, left = torch.randint(0, 96 - self.size, (2,), generator=gen).tolist()
        return image[None, top:top + self.size, left:left + self.size].clone(), label
