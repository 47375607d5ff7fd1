"""Ring buffer for transitions."""
import torch


class ReplayBuffer:
    def __init__(self, capacity, obs_shape):
        self.capacity, self.size, self.head = capacity, 0, 0
        self.obs_shape = obs_shape
        self.chunks = {}

    def add(self, obs, action, reward, next_obs):
        self.chunks[self.head] = (obs, action, reward, next_obs)
        self.head = (self.head + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self, count, gen):
        picks = torch.randint(self.size, (count,), generator=gen).tolist()
        rows = [self.chunks[i] for i in picks]
        cols = list(zip(*rows))
        n = rows[0][0].shape[0]
        j = torch.randint(n, (count,), generator=gen)
        return [torch.stack([c[k] for c, k in zip(col, j.tolist())]) for col in cols]
