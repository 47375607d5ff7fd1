import torch


class Part:
    def __init__(self, clicks, target, seed):
        self.clicks, self.target, self.seed = clicks, target, seed

    def batches(self, size, epoch):
        g = torch.Generator().manual_seed(self.seed + epoch)
        order = torch.randperm(len(self.target), generator=g)
        for i in range(0, len(order) - size + 1, size):
            idx = order[i:i + size]
            yield self.clicks[idx], self.target[idx]


class ClickSessions:
    """Sessions wander inside one of many small topics."""

    def __init__(self, n, items, seed, length=8, topics=150):
        g = torch.Generator().manual_seed(seed)
        topic = torch.randint(0, topics, (n, 1), generator=g)
        pos = torch.randint(0, 10, (n, length + 1), generator=g)
        ids = (topic * 10 + pos) % items
        self.clicks, self.target = ids[:, :-1], ids[:, -1]
        self.seed = seed

    def split(self, rank, world):
        held = len(self.target) // 10
        train = Part(self.clicks[held:][rank::world], self.target[held:][rank::world], self.seed)
        val = Part(self.clicks[:held][rank::world], self.target[:held][rank::world], self.seed)
        return train, val
