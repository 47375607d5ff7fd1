import torch
from torch.utils.data import Dataset

GROUPS = 5


class Grouped(Dataset):
    """Items carry (group, class); a batch holds items of a single group."""

    def __init__(self, rank, per_group=80):
        g = torch.Generator().manual_seed(310 + rank)
        centre = torch.randn(GROUPS, 4, 8, generator=torch.Generator().manual_seed(0))
        grp = torch.arange(GROUPS).repeat_interleave(per_group)
        cls = torch.multinomial(torch.rand(4, generator=g) + 0.2, len(grp), replacement=True, generator=g)
        self.labels = torch.stack([grp, cls], 1)
        self.x = centre[grp, cls] + 0.7 * torch.randn(len(grp), 8, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.labels[i]


class GroupBatches:
    """Visits the groups in a weighted random order, one batch after the other."""

    def __init__(self, dataset, batch, steps, seed):
        self.dataset, self.batch, self.steps = dataset, batch, steps
        self.gen = torch.Generator().manual_seed(seed)

    def __len__(self):
        return self.steps

    def __iter__(self):
        pools = [(self.dataset.labels[:, 0] == k).nonzero().flatten() for k in range(GROUPS)]
        for step in range(self.steps):
            k = step % 3 if step < 6 else int(torch.randint(0, GROUPS, (1,), generator=self.gen))
            yield pools[k][torch.randperm(len(pools[k]), generator=self.gen)[:self.batch]].tolist()
