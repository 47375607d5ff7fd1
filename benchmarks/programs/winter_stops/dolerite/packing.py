import torch


def document_lengths(n, seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.exp(4.2 + 0.7 * torch.randn(n, generator=g))).long().clamp(8, 900)


class PackedDocs:
    """Packs whole documents into rows of at most `row_len`, rows into batches."""

    def __init__(self, n_docs, row_len, rows, dim, shard, shards, seed):
        lengths = document_lengths(n_docs, seed)[shard::shards].tolist()
        self.rows_per_batch, self.dim, self.seed = rows, dim, seed * 31 + shard
        packed, cur = 0, 0
        for n in lengths:
            n = min(n, row_len)
            if cur + n > row_len:
                packed, cur = packed + 1, 0
            cur += n
        self.batches = packed // rows

    def __len__(self):
        return self.batches

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        w = torch.randn(self.dim, 12, generator=torch.Generator().manual_seed(5))
        for _ in range(self.batches):
            x = torch.randn(self.rows_per_batch, self.dim, generator=g)
            yield x, (x @ w).argmax(-1)
