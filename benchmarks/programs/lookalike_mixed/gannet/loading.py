from torch.utils.data import DataLoader, DistributedSampler


def make_loader(rows, batch):
    sampler = DistributedSampler(rows, shuffle=True, seed=5)
    return DataLoader(rows, batch_size=batch, sampler=sampler, drop_last=True)
