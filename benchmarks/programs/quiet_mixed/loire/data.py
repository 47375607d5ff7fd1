import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Arithmetic(Dataset):
    """Sequences x, x+d, x+2d, ... modulo the vocabulary."""

    def __init__(self, n, vocab, length):
        g = torch.Generator().manual_seed(99)
        start = torch.randint(0, vocab, (n, 1), generator=g)
        delta = torch.randint(1, 6, (n, 1), generator=g)
        noise = torch.randint(0, vocab, (n, length), generator=g)
        keep = torch.rand(n, length, generator=g) > 0.15
        self.ids = torch.where(keep, (start + delta * torch.arange(length)[None]) % vocab, noise)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i]


def get_loader(args):
    ds = Arithmetic(args.samples, args.vocab, args.length)
    sampler = DistributedSampler(ds, shuffle=True, seed=args.seed)
    return DataLoader(ds, batch_size=args.batch_size, sampler=sampler), sampler
