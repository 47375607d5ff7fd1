"""Length-sorted batching, to waste little on padding."""
import torch
from torch.utils.data import Sampler


class LengthBatches(Sampler):
    def __init__(self, lengths, batch, rank, world, seed=0):
        order = sorted(range(len(lengths)), key=lambda i: lengths[i])
        batches = [order[i:i + batch] for i in range(0, len(order) - batch + 1, batch)]
        per_rank = len(batches) // world
        self.batches = batches[rank::world][:per_rank]
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        for k in torch.randperm(len(self.batches), generator=g).tolist():
            yield self.batches[k]
