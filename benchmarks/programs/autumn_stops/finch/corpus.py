import torch


class DialogueCorpus:
    """Turns of very uneven length; conversations are dealt out to ranks in contiguous runs."""

    def __init__(self, rank, world_size, vocab, size=2048, max_len=40):
        gen = torch.Generator().manual_seed(99)
        lengths = (torch.rand(size, generator=gen) ** 2 * (max_len - 4) + 4).long()
        lengths[1536:1560] = 5 + torch.arange(24) % 3
        starts = torch.randint(1, vocab, (size,), generator=gen)
        strides = torch.randint(1, 5, (size,), generator=gen)
        per_rank = size // world_size
        mine = slice(rank * per_rank, (rank + 1) * per_rank)
        self.lengths = lengths[mine]
        pos = torch.arange(max_len)
        tokens = (starts[mine, None] + strides[mine, None] * pos) % (vocab - 1) + 1
        self.tokens = tokens * (pos < self.lengths[:, None])

    def batches(self, batch_size):
        for i in range(0, len(self.tokens), batch_size):
            yield self.tokens[i:i + batch_size], self.lengths[i:i + batch_size]
