"""A point that drifts; pushes keep it near the origin."""
import torch

ACTIONS, STATE = 5, 4


class Drift:
    def __init__(self, lanes, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.push = torch.zeros(ACTIONS, STATE)
        self.push[1, 0], self.push[2, 0] = 0.4, -0.4
        self.push[3, 1], self.push[4, 1] = 0.4, -0.4
        self.lanes = lanes
        self.state = self._fresh(lanes)

    def _fresh(self, n):
        return torch.randn(n, STATE, generator=self.gen)

    def step(self, action):
        before = self.state
        wind = 0.1 * torch.randn(self.lanes, STATE, generator=self.gen)
        after = 0.95 * before + self.push[action] + wind
        reward = -after[:, :2].pow(2).sum(-1)
        restart = torch.rand(self.lanes, generator=self.gen) < 0.02
        self.state = torch.where(restart[:, None], self._fresh(self.lanes), after)
        return before, action, reward, after


class Replay:
    def __init__(self, size, seed):
        self.size, self.rows = size, []
        self.gen = torch.Generator().manual_seed(seed)

    def add(self, s, a, r, n):
        self.rows.extend(zip(s, a, r, n))
        del self.rows[:-self.size]

    def sample(self, count):
        pick = torch.randint(0, len(self.rows), (count,), generator=self.gen).tolist()
        s, a, r, n = zip(*[self.rows[i] for i in pick])
        return torch.stack(s), torch.stack(a), torch.stack(r), torch.stack(n)
