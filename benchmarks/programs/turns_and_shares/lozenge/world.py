"""A batch of little corridor games held in tensors."""
import torch


class Corridors:
    """Walk to a lamp that stands left or right; the lamp's side is shown on the first turns only."""

    def __init__(self, games, length, seed):
        self.games, self.length = games, length
        self.gen = torch.Generator().manual_seed(seed)
        self.reset(torch.ones(games, dtype=torch.bool))

    def reset(self, which):
        if not hasattr(self, "pos"):
            self.pos = torch.zeros(self.games)
            self.side = torch.zeros(self.games)
            self.age = torch.zeros(self.games)
        n = int(which.sum())
        self.pos[which] = 0.0
        self.side[which] = torch.randint(2, (n,), generator=self.gen).float() * 2 - 1
        self.age[which] = 0.0

    def look(self):
        return torch.stack([self.pos / self.length, self.side * (self.age < 2), self.age / 20], 1)

    def step(self, action):
        self.pos += action.float() * 2 - 1
        self.age += 1
        reached = self.pos * self.side >= self.length
        done = reached | (self.pos.abs() >= self.length) | (self.age >= 20)
        reward = reached.float() - 0.02
        self.reset(done)
        return reward, done
