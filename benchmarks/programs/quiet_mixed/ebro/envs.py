import torch


class Reacher:
    """Vectorised point mass that must reach a random target."""

    obs_dim, act_dim = 6, 2

    def __init__(self, n, seed):
        self.n = n
        self.g = torch.Generator().manual_seed(seed)
        self.reset()

    def reset(self):
        self.pos = torch.randn(self.n, 2, generator=self.g) * 3
        self.vel = torch.zeros(self.n, 2)
        self.goal = torch.randn(self.n, 2, generator=self.g) * 10 + 4
        return self.obs()

    def obs(self):
        return torch.cat([self.pos, self.vel, self.goal], -1)

    def step(self, act):
        self.vel = 0.9 * self.vel + 0.2 * act.clamp(-1, 1)
        self.pos = self.pos + self.vel
        dist = (self.goal - self.pos).norm(dim=-1)
        return self.obs(), -0.1 * dist
