import random

from torch.utils.data import Sampler


class LengthBucketBatchSampler(Sampler):
    """Batches of similar length with a frame budget; every rank gets the same number of batches."""

    def __init__(self, lengths, max_frames, num_buckets, shuffle, seed, rank, world_size):
        self.lengths = list(lengths)
        self.max_frames = max_frames
        self.num_buckets = num_buckets
        self.shuffle = shuffle
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _plan(self):
        rng = random.Random(self.seed * 7919 + self.epoch)
        order = sorted(range(len(self.lengths)), key=self.lengths.__getitem__)
        size = -(-len(order) // self.num_buckets)
        batches = []
        for k in range(self.num_buckets):
            bucket = order[k * size:(k + 1) * size]
            if self.shuffle:
                rng.shuffle(bucket)
            cur, longest = [], 0
            for i in bucket:
                longest_new = max(longest, self.lengths[i])
                if cur and longest_new * (len(cur) + 1) > self.max_frames:
                    batches.append(cur)
                    cur, longest_new = [], self.lengths[i]
                cur.append(i)
                longest = longest_new
            if cur:
                batches.append(cur)
        if self.shuffle:
            rng.shuffle(batches)
        while len(batches) % self.world_size:
            big = max(range(len(batches)), key=lambda j: len(batches[j]))
            b = batches.pop(big)
            batches += [b[::2], b[1::2]]
        return batches

    def __iter__(self):
        return iter(self._plan()[self.rank::self.world_size])

    def __len__(self):
        return len(self._plan()) // self.world_size
