import torch
from torch.utils.data import Sampler


class CurriculumSampler(Sampler):
    """Starts with the easiest part of the data and opens up linearly; hard samples therefore appear later and less often.

    All ranks draw the same permutation of the open part and take every world-th entry.
    """

    def __init__(self, difficulty, rank, world, draws, open_at=0.3, full_epoch=4, seed=0):
        self.order = torch.argsort(torch.as_tensor(difficulty))
        self.rank, self.world, self.draws = rank, world, draws
        self.open_at, self.full_epoch, self.seed = open_at, full_epoch, seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        frac = min(1.0, self.open_at + (1 - self.open_at) * self.epoch / self.full_epoch)
        open_part = self.order[: int(frac * len(self.order))]
        g = torch.Generator().manual_seed(self.seed * 997 + self.epoch)
        total = self.draws * self.world
        picks = torch.cat([torch.randperm(len(open_part), generator=g) for _ in range(-(-total // len(open_part)))])[:total]
        return iter(open_part[picks][self.rank::self.world].tolist())

    def __len__(self):
        return self.draws
