import torch


class PackedBatches:
    """Fixed number of documents a batch; their lengths vary, so batches differ in tokens."""

    def __init__(self, rank, docs, vocab):
        self.g = torch.Generator().manual_seed(230 + rank)
        self.docs, self.vocab = docs, vocab

    def __iter__(self):
        while True:
            lengths = torch.randint(8, 33, (self.docs,), generator=self.g)
            width = int(lengths.max())
            start = torch.randint(0, self.vocab, (self.docs, 1), generator=self.g)
            ids = (start + torch.arange(width)) % self.vocab
            mask = torch.arange(width)[None] < lengths[:, None]
            yield ids, mask
