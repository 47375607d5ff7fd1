import torch
from torch.utils.data import Dataset, Sampler


class TwoStreamSampler(Sampler):
    """Batches of `n_lab` labeled and `n_unl` unlabeled indices; the labeled ones are cycled."""

    def __init__(self, labeled, unlabeled, n_lab, n_unl, rank, world, seed=0):
        self.labeled, self.unlabeled = labeled, unlabeled
        self.n_lab, self.n_unl = n_lab, n_unl
        self.rank, self.world, self.seed, self.epoch = rank, world, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.unlabeled) // (self.n_unl * self.world)

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed * 1000 + self.epoch)
        unl = torch.tensor(self.unlabeled)[torch.randperm(len(self.unlabeled), generator=g)].tolist()
        need = len(self) * self.n_lab * self.world
        lab = []
        while len(lab) < need:
            lab += torch.tensor(self.labeled)[torch.randperm(len(self.labeled), generator=g)].tolist()
        for b in range(len(self)):
            at = b * self.world + self.rank
            yield lab[at * self.n_lab:(at + 1) * self.n_lab] + unl[at * self.n_unl:(at + 1) * self.n_unl]


class Blobs(Dataset):
    def __init__(self, n=480, dim=20, classes=5, seed=0, labeled=60):
        g = torch.Generator().manual_seed(seed)
        centers = torch.randn(classes, dim, generator=torch.Generator().manual_seed(99)) * 1.4
        self.y = torch.randint(0, classes, (n,), generator=g)
        self.x = centers[self.y] + torch.randn(n, dim, generator=g)
        self.labeled = list(range(labeled))
        self.unlabeled = list(range(labeled, n))
        self.first_unlabeled = labeled

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i]
        y = self.y[i] if i < self.first_unlabeled else torch.tensor(-1)
        return x + 0.2 * torch.randn_like(x), x + 0.2 * torch.randn_like(x), y
