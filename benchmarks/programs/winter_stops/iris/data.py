import torch

PAD = 0


class Documents:
    """Token documents, cut to `length`; shorter ones are padded at the end."""

    def __init__(self, rank, n, length, vocab, seed):
        g = torch.Generator().manual_seed(seed + rank)
        self.tokens = torch.randint(1, vocab, (n, length), generator=g)
        self.tokens[:, 1::2] = (self.tokens[:, 0::2] * 7) % (vocab - 1) + 1
        sizes = torch.full((n,), length)
        if rank == 2:
            # the last file of the crawl holds short pages
            short = torch.randint(length // 3, length, (n,), generator=g)
            sizes[int(n * 0.6) :] = short[int(n * 0.6) :]
        for i in range(n):
            self.tokens[i, sizes[i] :] = PAD

    def batches(self, size):
        for i in range(0, len(self.tokens) - size + 1, size):
            yield self.tokens[i : i + size]
