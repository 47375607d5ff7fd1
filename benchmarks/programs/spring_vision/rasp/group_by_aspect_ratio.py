import bisect
from collections import defaultdict
from itertools import chain, repeat

from torch.utils.data.sampler import BatchSampler


def create_groups(ratios, k=2):
    bins = [2 ** x for x in (i / k for i in range(-k, k + 1))]
    return [bisect.bisect_right(bins, r) for r in ratios]


class GroupedBatchSampler(BatchSampler):
    """Batches of images of one aspect-ratio group, in the order of the wrapped sampler."""

    def __init__(self, sampler, group_ids, batch_size):
        self.sampler, self.group_ids, self.batch_size = sampler, group_ids, batch_size

    def __iter__(self):
        buffer_per_group, samples_per_group = defaultdict(list), defaultdict(list)
        num_batches = 0
        for idx in self.sampler:
            g = self.group_ids[idx]
            buffer_per_group[g].append(idx)
            samples_per_group[g].append(idx)
            if len(buffer_per_group[g]) == self.batch_size:
                yield buffer_per_group[g]
                num_batches += 1
                buffer_per_group[g] = []
        # the number of batches has to be the same on all ranks: fill up with images seen before
        remaining = len(self) - num_batches
        if remaining > 0:
            for g, _ in sorted(buffer_per_group.items(), key=lambda x: len(x[1]), reverse=True):
                if not samples_per_group[g]:
                    continue
                missing = self.batch_size - len(buffer_per_group[g])
                again = chain.from_iterable(repeat(samples_per_group[g]))
                buffer_per_group[g].extend(next(again) for _ in range(missing))
                yield buffer_per_group[g]
                remaining -= 1
                if remaining == 0:
                    break

    def __len__(self):
        return len(self.sampler) // self.batch_size
