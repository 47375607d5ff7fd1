import torch
from torch.utils.data import Sampler


class BucketBatches(Sampler):
    """Batches of near-equal length under a token budget.

    Everybody builds the same global list of batches; batches that follow each other in
    length order form a group and each worker takes one of the group.
    """

    def __init__(self, lengths, budget, world, rank, seed):
        self.lengths, self.budget, self.world, self.rank, self.seed = lengths, budget, world, rank, seed
        self.epoch = 0
        self.mine = self._deal()

    def set_epoch(self, epoch):
        self.epoch = epoch
        self.mine = self._deal()

    def _deal(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        noise = torch.rand(len(self.lengths), generator=g).tolist()
        order = sorted(range(len(self.lengths)), key=lambda i: self.lengths[i] + noise[i])
        batches, cur = [], []
        for i in order:
            if cur and self.lengths[i] * (len(cur) + 1) > self.budget:
                batches.append(cur)
                cur = []
            cur.append(i)
        batches.append(cur)
        while len(batches) % self.world:
            k = max(range(len(batches)), key=lambda b: len(batches[b]))
            b = batches[k]
            batches[k:k + 1] = [b[: len(b) // 2], b[len(b) // 2:]]
        groups = [batches[k:k + self.world] for k in range(0, len(batches), self.world)]
        return [groups[k][self.rank] for k in torch.randperm(len(groups), generator=g).tolist()]

    def __len__(self):
        return len(self.mine)

    def __iter__(self):
        return iter(self.mine)
