import torch


class GridChase:
    """Many independent 7x7 grids; reach the goal, +1, each move costs 0.02, episodes end at 30 moves."""
    MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def __init__(self, n, seed, size=7, limit=30):
        self.n, self.size, self.limit = n, size, limit
        self.gen = torch.Generator().manual_seed(seed)
        self.pos = torch.zeros(n, 2, dtype=torch.long)
        self.goal = torch.zeros(n, 2, dtype=torch.long)
        self.t = torch.zeros(n, dtype=torch.long)
        self._reset(torch.ones(n, dtype=torch.bool))

    def _reset(self, m):
        k = int(m.sum())
        self.pos[m] = torch.randint(0, self.size, (k, 2), generator=self.gen)
        self.goal[m] = torch.randint(0, self.size, (k, 2), generator=self.gen)
        self.t[m] = 0

    def obs(self):
        p = torch.nn.functional.one_hot(self.pos, self.size).flatten(1)
        g = torch.nn.functional.one_hot(self.goal, self.size).flatten(1)
        return torch.cat([p, g], 1).float()

    def step(self, a):
        self.pos = (self.pos + self.MOVES[a]).clamp_(0, self.size - 1)
        self.t += 1
        won = (self.pos == self.goal).all(1)
        timeout = (self.t >= self.limit) & ~won
        nxt = self.obs()
        self._reset(won | timeout)
        return nxt, won.float() - 0.02, won, timeout
