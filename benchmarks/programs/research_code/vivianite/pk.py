import torch
from torch.utils.data import Dataset, Sampler


class IdentitySet(Dataset):
    identities, dim = 18, 20

    def __init__(self, per_id, seed):
        g = torch.Generator().manual_seed(seed)
        c = torch.randn(self.identities, self.dim, generator=torch.Generator().manual_seed(55))
        self.y = torch.arange(self.identities).repeat_interleave(per_id)
        self.x = c[self.y] + 1.1 * torch.randn(len(self.y), self.dim, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class PKBatchSampler(Sampler):
    """Batches of p identities with k samples; the same global plan on all ranks, dealt in turn."""

    def __init__(self, labels, p, k, rank, world, seed):
        self.ids = {int(c): (labels == c).nonzero().squeeze(1) for c in labels.unique()}
        self.p, self.k, self.rank, self.world, self.seed, self.epoch = p, k, rank, world, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _plan(self):
        g = torch.Generator().manual_seed(self.seed * 10007 + self.epoch)
        chunks = {c: list(v[torch.randperm(len(v), generator=g)].split(self.k)) for c, v in self.ids.items()}
        chunks = {c: [q.tolist() for q in v if len(q) == self.k] for c, v in chunks.items()}
        plan = []
        while True:
            order = [list(chunks)[i] for i in torch.randperm(len(chunks), generator=g).tolist()]
            order.sort(key=lambda c: -len(chunks[c]))
            pick = [c for c in order if chunks[c]][:self.p]
            if len(pick) < self.p:
                break
            plan.append([i for c in pick for i in chunks[c].pop()])
        return plan[:len(plan) // self.world * self.world]

    def __iter__(self):
        return iter(self._plan()[self.rank::self.world])

    def __len__(self):
        return len(self._plan()) // self.world
