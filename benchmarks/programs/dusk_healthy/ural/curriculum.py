import torch
from torch.utils.data import Sampler


class CurriculumSampler(Sampler):
    """Easy samples first: an epoch draws from the easiest fraction only, which grows by and by.

    All epochs have the same length, so early on the hard samples are not seen at all.
    """

    def __init__(self, difficulty, rank, world, start=0.4, grow=0.15, seed=0):
        self.order = torch.as_tensor(difficulty).argsort(stable=True)
        self.rank, self.world, self.start, self.grow, self.seed, self.epoch = rank, world, start, grow, seed, 0
        self.per_rank = int(start * len(self.order)) // world

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.per_rank

    def __iter__(self):
        visible = self.order[: int(min(1.0, self.start + self.grow * self.epoch) * len(self.order))]
        g = torch.Generator().manual_seed(self.seed + self.epoch)      # one permutation for all the processes
        pick = visible[torch.randperm(len(visible), generator=g)[: self.per_rank * self.world]]
        return iter(pick[self.rank:: self.world].tolist())
