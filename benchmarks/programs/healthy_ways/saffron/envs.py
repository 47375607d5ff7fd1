"""A batch of small grid worlds stepped together."""
import torch


class GridWorlds:
    """Each world is a size x size grid; the walker has to reach the goal."""

    MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def __init__(self, n, size=6, limit=24, seed=0):
        self.n, self.size, self.limit = n, size, limit
        self.gen = torch.Generator().manual_seed(seed)
        self.pos = torch.zeros(n, 2, dtype=torch.long)
        self.goal = torch.zeros(n, 2, dtype=torch.long)
        self.t = torch.zeros(n, dtype=torch.long)
        self._reset(torch.ones(n, dtype=torch.bool))

    def _reset(self, mask):
        k = int(mask.sum())
        if k == 0:
            return
        self.pos[mask] = torch.randint(0, self.size, (k, 2), generator=self.gen)
        self.goal[mask] = torch.randint(0, self.size, (k, 2), generator=self.gen)
        self.t[mask] = 0

    def observe(self):
        scale = float(self.size - 1)
        both = torch.cat([self.pos, self.goal], dim=1).float() / scale
        delta = (self.goal - self.pos).float() / scale
        return torch.cat([both * 2 - 1, delta], dim=1)

    def step(self, action):
        self.pos = (self.pos + self.MOVES[action]).clamp(0, self.size - 1)
        self.t += 1
        reached = (self.pos == self.goal).all(dim=1)
        done = reached | (self.t >= self.limit)
        reward = torch.where(reached, 1.0, -0.02)
        self._reset(done)
        return self.observe(), reward, done
