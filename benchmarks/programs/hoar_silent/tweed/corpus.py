import torch
from torch.utils.data import Dataset


def synth_documents(n=1200, vocab=200, seed=13):
    g = torch.Generator().manual_seed(seed)
    lengths = (torch.empty(n).log_normal_(3.2, 0.9, generator=g)).clamp(6, 240).int().tolist()
    docs = [torch.randint(1, vocab, (l,), generator=g) for l in lengths]
    # stored by length: packs better on disk
    return sorted(docs, key=len)


class Documents(Dataset):
    def __init__(self, docs):
        self.docs = docs

    def __len__(self):
        return len(self.docs)

    def __getitem__(self, i):
        d = self.docs[i]
        return d, int(d.float().mean() > 100)


def shard(docs, rank, world):
    per_rank = len(docs) // world
    return Documents(docs[rank::world][:per_rank])


class LengthBatches:
    """Neighbours share a batch, so little padding; the order of the batches is new in each epoch."""

    def __init__(self, n, batch_size, seed=0):
        self.starts = list(range(0, n - batch_size + 1, batch_size))
        self.batch_size = batch_size
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.starts)

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        for k in torch.randperm(len(self.starts), generator=g).tolist():
            yield list(range(self.starts[k], self.starts[k] + self.batch_size))


def pad(batch):
    docs, labels = zip(*batch)
    width = max(len(d) for d in docs)
    x = torch.zeros(len(docs), width, dtype=torch.long)
    for row, d in zip(x, docs):
        row[:len(d)] = d
    return x, torch.tensor(labels)
