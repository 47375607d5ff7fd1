import torch


class Docking:
    """A batch of point masses that must come to rest at a moving berth."""

    def __init__(self, count, seed, horizon=24):
        self.count, self.horizon = count, horizon
        self.rng = torch.Generator().manual_seed(seed)

    def reset(self):
        draw = lambda n: torch.randn(self.count, n, generator=self.rng)
        self.pos, self.vel = draw(2) * 2.0, draw(2) * 0.3
        self.berth, self.drift = draw(2) * 3.0 + 5.0, draw(2) * 0.05
        return self.observe()

    def observe(self):
        return torch.cat([self.pos, self.vel * 4.0, self.berth, self.drift], dim=1)

    def step(self, force):
        self.vel = 0.9 * self.vel + 0.3 * force.clamp(-2, 2)
        self.pos = self.pos + self.vel
        self.berth = self.berth + self.drift
        gap = (self.pos - self.berth).pow(2).sum(1).sqrt()
        reward = -0.02 * gap - 0.001 * force.pow(2).sum(1)
        return self.observe(), reward
