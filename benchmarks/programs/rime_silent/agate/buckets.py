from torch.utils.data import Sampler


class BucketBatchSampler(Sampler):
    """Batches of similar length, cut from windows of a base sampler's order."""

    def __init__(self, sampler, lengths, batch_size, window=8):
        self.sampler = sampler
        self.lengths = lengths
        self.batch_size = batch_size
        self.window = window * batch_size

    def _flush(self, pool):
        pool.sort(key=lambda i: self.lengths[i])
        for s in range(0, len(pool), self.batch_size):
            yield pool[s:s + self.batch_size]

    def __iter__(self):
        pool = []
        for idx in self.sampler:
            pool.append(idx)
            if len(pool) == self.window:
                yield from self._flush(pool)
                pool = []
        yield from self._flush(pool)

    def __len__(self):
        return (len(self.sampler) + self.batch_size - 1) // self.batch_size
