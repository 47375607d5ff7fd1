import torch
from torch.utils.data import Sampler


class ResumableSampler(Sampler):
    """Shuffled, split over ranks, can continue within an epoch.

    `consumed` counts the samples of the running epoch that this rank has used.
    """

    def __init__(self, length, rank, world, seed=0):
        self.length, self.rank, self.world, self.seed = length, rank, world, seed
        self.num_samples = length // world
        self.epoch = 0
        self.consumed = 0

    def set_epoch(self, epoch):
        if epoch != self.epoch:
            self.consumed = 0
        self.epoch = epoch

    def advance(self, n):
        self.consumed += n

    def state_dict(self):
        return {"epoch": self.epoch, "consumed": self.consumed, "seed": self.seed}

    def load_state_dict(self, state):
        self.epoch = state["epoch"]
        self.consumed = state["consumed"]
        self.seed = state["seed"]

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed * 1009 + self.epoch)
        order = torch.randperm(self.length, generator=g).tolist()
        order = order[:self.num_samples * self.world]
        mine = order[self.rank::self.world]
        return iter(mine[self.consumed:])

    def __len__(self):
        return self.num_samples - self.consumed
