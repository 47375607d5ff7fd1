import random
from bisect import bisect_right

import torch.distributed as dist
from torch.utils.data import Sampler


class BucketBatchSampler(Sampler):
    """Groups utterances of similar length; a batch holds at most `max_frames` padded frames."""

    def __init__(self, lengths, max_frames, edges=(40, 60, 80, 100), shuffle=True):
        self.lengths, self.max_frames, self.shuffle = lengths, max_frames, shuffle
        self.buckets = [[] for _ in range(len(edges) + 1)]
        for i, n in enumerate(lengths):
            self.buckets[bisect_right(edges, n)].append(i)
        self.refresh()

    def refresh(self):
        batches = []
        for bucket in self.buckets:
            order = list(bucket)
            if self.shuffle:
                random.shuffle(order)
            current, longest = [], 0
            for i in order:
                longest_next = max(longest, self.lengths[i])
                if current and longest_next * (len(current) + 1) > self.max_frames:
                    batches.append(current)
                    current, longest_next = [], self.lengths[i]
                current.append(i)
                longest = longest_next
            if current:
                batches.append(current)
        if self.shuffle:
            random.shuffle(batches)
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


class DistributedBatches(Sampler):
    """Hands every n-th batch to this rank; the tail that does not divide is left out."""

    def __init__(self, batch_sampler):
        self.inner = batch_sampler
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def set_epoch(self, epoch):
        self.epoch = epoch
        self.inner.refresh()

    def __len__(self):
        return len(self.inner) // self.world

    def __iter__(self):
        batches = list(self.inner)
        usable = len(self) * self.world
        return iter(batches[self.rank:usable:self.world])
