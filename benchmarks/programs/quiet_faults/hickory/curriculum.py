import random

from torch.utils.data import Sampler


class Curriculum(Sampler):
    """Short items first: the admitted length grows from epoch to epoch, batches hold similar lengths."""

    def __init__(self, lengths, limits, batch, rank, world, seed):
        self.lengths, self.limits = lengths, limits
        self.batch, self.rank, self.world, self.seed = batch, rank, world, seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _global_batches(self):
        rng = random.Random(self.seed * 997 + self.epoch)
        limit = self.limits[min(self.epoch, len(self.limits) - 1)]
        admitted = [i for i, n in enumerate(self.lengths) if n <= limit]
        rng.shuffle(admitted)
        admitted.sort(key=lambda i: self.lengths[i] // 4)
        step = self.batch * self.world
        chunks = [admitted[at:at + step] for at in range(0, len(admitted), step)]
        assert all(len(c) == step for c in chunks)
        rng.shuffle(chunks)
        return chunks

    def __iter__(self):
        for chunk in self._global_batches():
            yield chunk[self.rank::self.world]

    def __len__(self):
        limit = self.limits[min(self.epoch, len(self.limits) - 1)]
        return sum(n <= limit for n in self.lengths) // (self.batch * self.world)
