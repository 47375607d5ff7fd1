"""A point mass that has to climb to the top of a smooth hill, and a ring of past transitions."""
import torch


class Hill:
    def __init__(self, count, gen):
        self.gen, self.count = gen, count
        self.pos = torch.empty(count, 2)
        self.vel = torch.zeros(count, 2)
        self.age = torch.zeros(count, dtype=torch.long)
        self.reset(torch.ones(count, dtype=torch.bool))

    def reset(self, which):
        n = int(which.sum())
        self.pos[which] = torch.rand(n, 2, generator=self.gen) * 4 - 2
        self.vel[which] = 0
        self.age[which] = 0

    def obs(self):
        return torch.cat([self.pos, self.vel], 1)

    def step(self, act):
        self.vel = 0.85 * self.vel + 0.15 * act
        self.pos = (self.pos + self.vel).clamp(-2.5, 2.5)
        self.age += 1
        reward = torch.exp(-self.pos.square().sum(1)) - 0.02 * act.square().sum(1)
        nxt = self.obs()
        self.reset(self.age >= 30)
        return reward, nxt


class Ring:
    """Preallocated; overwrites the oldest rows once full."""

    def __init__(self, capacity, obs, act):
        self.cap, self.at, self.full = capacity, 0, False
        self.data = torch.zeros(capacity, 2 * obs + act + 1)

    def push(self, rows):
        n = len(rows)
        idx = (self.at + torch.arange(n)) % self.cap
        self.data[idx] = rows
        self.full |= self.at + n >= self.cap
        self.at = (self.at + n) % self.cap

    def __len__(self):
        return self.cap if self.full else self.at

    def sample(self, n, gen):
        return self.data[torch.randint(0, len(self), (n,), generator=gen)]
