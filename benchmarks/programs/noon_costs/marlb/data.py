import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, Sampler


class Utterances(Dataset):
    """Synthetic filterbank features with a long-tailed duration distribution."""

    def __init__(self, n=768, mel=40, classes=24, seed=0):
        g = torch.Generator().manual_seed(seed)
        length = torch.exp(4.1 + 0.6 * torch.randn(n, generator=g)).clamp(16, 320).long()
        self.lengths = length.tolist()
        self.labels = torch.randint(0, classes, (n,), generator=g)
        self.proto = torch.randn(classes, mel, generator=g)
        self.mel = mel

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(1000 + i)
        x = torch.randn(self.lengths[i], self.mel, generator=g) + 0.5 * self.proto[self.labels[i]]
        return x, self.labels[i]


class BucketedDistributedSampler(Sampler):
    """Yields batches of similar length; every global step takes one super batch of
    world_size * batch_size utterances, which the ranks divide among themselves."""

    def __init__(self, lengths, batch_size, rank, world, seed=0):
        self.lengths = lengths
        self.batch_size = batch_size
        self.rank = rank
        self.world = world
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.lengths) // (self.batch_size * self.world)

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.lengths), generator=g).tolist()
        size = self.batch_size * self.world
        pool = sorted(order[:len(self) * size], key=lambda i: self.lengths[i])
        for n, k in enumerate(torch.randperm(len(self), generator=g).tolist()):
            chunk = pool[k * size:(k + 1) * size]
            yield chunk[(self.rank + n) % self.world::self.world]


def collate(items):
    xs, ys = zip(*items)
    lengths = torch.tensor([len(x) for x in xs])
    return pad_sequence(xs, batch_first=True), lengths, torch.stack(ys)
