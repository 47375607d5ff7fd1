import torch


class TextShard:
    """Every worker owns one slice of the corpus for the whole run."""

    def __init__(self, rank, world, batch, n=1536, length=20, vocab=48):
        g = torch.Generator().manual_seed(5)
        start = torch.randint(0, vocab, (n, 1), generator=g)
        stride = torch.randint(1, 7, (n, 1), generator=g)
        ids = (start + stride * torch.arange(length)[None]) % vocab
        noise = torch.randint(0, vocab, ids.shape, generator=g)
        ids = torch.where(torch.rand(ids.shape, generator=g) < 0.2, noise, ids)
        self.ids = ids[rank::world]
        self.batch = batch
        self.g = torch.Generator().manual_seed(100 + rank)

    def batches(self):
        while True:
            for idx in torch.randperm(len(self.ids), generator=self.g).split(self.batch):
                if len(idx) == self.batch:
                    yield self.ids[idx]
