import torch


class PrioritizedReplay:
    def __init__(self, capacity, obs_dim, alpha=0.6):
        self.obs = torch.zeros(capacity, obs_dim)
        self.nxt = torch.zeros(capacity, obs_dim)
        self.misc = torch.zeros(capacity, 3)
        self.prio = torch.zeros(capacity)
        self.capacity, self.alpha, self.size, self.at = capacity, alpha, 0, 0

    def add(self, obs, action, reward, done, nxt, prio):
        n = len(obs)
        idx = torch.arange(self.at, self.at + n) % self.capacity
        self.obs[idx], self.nxt[idx] = obs, nxt
        self.misc[idx] = torch.stack([action, reward, done], 1)
        self.prio[idx] = prio.clamp(min=1e-3) ** self.alpha
        self.at = (self.at + n) % self.capacity
        self.size = min(self.size + n, self.capacity)

    def sample(self, n, beta=0.4):
        p = self.prio[:self.size]
        idx = torch.multinomial(p, n, replacement=True)
        w = (self.size * p[idx] / p.sum()) ** -beta
        m = self.misc[idx]
        return idx, self.obs[idx], m[:, 0].long(), m[:, 1], m[:, 2], self.nxt[idx], w / w.max()

    def update(self, idx, prio):
        self.prio[idx] = prio.clamp(min=1e-3) ** self.alpha
