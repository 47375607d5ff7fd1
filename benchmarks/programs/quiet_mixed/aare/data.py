import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Stripes(Dataset):
    """Images with stripes of a class-dependent frequency plus noise."""

    def __init__(self, n, size, classes, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, classes, (n,), generator=g)
        phase = torch.rand(n, generator=g) * 6.28
        t = torch.linspace(0, 6.28, size)
        wave = torch.sin((self.y[:, None] + 1) * t[None] + phase[:, None])
        self.x = wave[:, None, None, :].expand(n, 1, size, size).contiguous()
        self.x = self.x + 0.4 * torch.randn(n, 1, size, size, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def build_loader(cfg):
    ds = Stripes(cfg.train_items, cfg.image_size, cfg.num_classes, cfg.seed)
    sampler = DistributedSampler(ds, seed=cfg.seed)
    return DataLoader(ds, batch_size=cfg.batch_size, sampler=sampler, drop_last=True), sampler
