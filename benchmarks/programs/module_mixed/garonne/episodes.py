import torch
from torch.utils.data import Dataset


class EpisodeTable:
    """A table of robot episodes; `shard` keeps a contiguous part so that a process loads only its own."""

    def __init__(self, starts, lengths):
        self.starts, self.lengths = starts, lengths

    @classmethod
    def load(cls, n=96):
        g = torch.Generator().manual_seed(27)
        lengths = torch.randint(10, 22, (n,), generator=g)
        return cls(torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)[:-1]]), lengths)

    def shard(self, num_shards, index):
        size = len(self.starts) // num_shards
        part = slice(index * size, (index + 1) * size)
        return EpisodeTable(self.starts[part], self.lengths[part])


class FrameDataset(Dataset):
    def __init__(self, table, frames_per_episode=8):
        self.index = [(int(s), int(s) + k) for s in table.starts for k in range(frames_per_episode)]

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        episode, frame = self.index[i]
        g = torch.Generator().manual_seed(frame)
        obs = torch.randn(12, generator=g)
        return {"obs": obs, "action": torch.stack([obs[:6].sum(), obs[6:].sum()]).tanh(), "frame": frame}
