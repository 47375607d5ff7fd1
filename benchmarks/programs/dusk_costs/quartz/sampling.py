"""Batch assignment for variable-length sequences."""
import torch
from torch.utils.data import Sampler


class LengthSortedSampler(Sampler):
    """Cuts length-sorted windows into micro-batches so that padding stays low.

    Windows are visited in random order; every rank draws the same permutation.
    """

    def __init__(self, lengths, batch_size, rank, world, window=8, seed=0):
        self.lengths = torch.as_tensor(lengths)
        self.batch_size, self.rank, self.world = batch_size, rank, world
        self.seed, self.epoch = seed, 0
        self.per_step = batch_size * world * window
        self.window = window

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.lengths) // self.per_step * self.window

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        perm = torch.randperm(len(self.lengths), generator=g)
        for w in range(len(perm) // self.per_step):
            chunk = perm[w * self.per_step:(w + 1) * self.per_step]
            chunk = chunk[self.lengths[chunk].argsort()]
            batches = chunk.split(self.batch_size)
            share = batches[self.rank::self.world]
            for b in share:
                yield b.tolist()
