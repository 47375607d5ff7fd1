import random

from torch.utils.data import Sampler


class BucketBatchSampler(Sampler):
    """Batches of utterances of similar length, split over the processes.

    Every process sees the same number of batches. `set_epoch` gives another order per epoch.
    """

    def __init__(self, lengths, batch_size, num_replicas, rank, bucket_size=96, shuffle=True, seed=0):
        self.batch_size, self.shuffle = batch_size, shuffle
        self.num_replicas, self.rank = num_replicas, rank
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        self.buckets = [order[i:i + bucket_size] for i in range(0, len(order), bucket_size)]
        self.seed, self.epoch = seed, 0
        total = sum(len(b) // batch_size for b in self.buckets)
        self.num_batches = total // num_replicas

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.num_batches

    def __iter__(self):
        rng = random.Random(self.seed + self.epoch)
        batches = []
        for bucket in self.buckets:
            bucket = list(bucket)
            if self.shuffle:
                rng.shuffle(bucket)
            batches += [bucket[i:i + self.batch_size] for i in range(0, len(bucket) - self.batch_size + 1,
                                                                     self.batch_size)]
        if self.shuffle:
            rng.shuffle(batches)
        usable = self.num_batches * self.num_replicas
        yield from batches[self.rank:usable:self.num_replicas]
