import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class TrackSet(Dataset):
    def __init__(self, store, n):
        self.store = store
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        feat = self.store.get(i)
        label = int(feat.mean() > 0)
        return torch.from_numpy(feat[::8].copy()), label


def train_loader(store, n, batch_size, workers):
    ds = TrackSet(store, n)
    sampler = DistributedSampler(ds, seed=5)
    loader = DataLoader(ds, batch_size=batch_size, sampler=sampler, num_workers=workers,
                        drop_last=True, multiprocessing_context="fork")
    return loader, sampler


def warm_up(store, n):
    for i in range(n):
        store.get(i)
    return np.mean([store.items[i].std() for i in range(n)])
