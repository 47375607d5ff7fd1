import torch
from torch.utils.data import Sampler


class TokenBudgetBatches(Sampler):
    """Batches of similar lengths under a token budget; the same plan on every rank, dealt out in turn."""

    def __init__(self, lengths, budget, rank, world, seed):
        self.lengths, self.budget = lengths, budget
        self.rank, self.world, self.seed, self.epoch = rank, world, seed, 0
        self._plan()

    def set_epoch(self, epoch):
        self.epoch = epoch
        self._plan()

    def _plan(self):
        g = torch.Generator().manual_seed(self.seed * 1000 + self.epoch)
        jitter = torch.rand(len(self.lengths), generator=g) * 3
        order = (self.lengths + jitter).argsort().tolist()
        batches, current, longest = [], [], 0
        for i in order:
            n = int(self.lengths[i])
            if current and max(longest, n) * (len(current) + 1) > self.budget:
                batches.append(current)
                current, longest = [], 0
            current.append(i)
            longest = max(longest, n)
        if current:
            batches.append(current)
        shuffled = [batches[i] for i in torch.randperm(len(batches), generator=g).tolist()]
        usable = len(shuffled) - len(shuffled) % self.world
        self.mine = shuffled[self.rank:usable:self.world]

    def __iter__(self):
        return iter(self.mine)

    def __len__(self):
        return len(self.mine)


def collate(rows):
    xs, ys = zip(*rows)
    x = torch.nn.utils.rnn.pad_sequence(xs, batch_first=True, padding_value=0)
    y = torch.nn.utils.rnn.pad_sequence(ys, batch_first=True, padding_value=-100)
    return x, y
