import torch


class VecReacher:
    """Batched point-mass tasks. Terrain level scales the sensor units and the drag, as in
    a curriculum of terrains; every process simulates its own block of levels."""

    obs_dim, act_dim = 8, 2

    def __init__(self, num_envs, levels, horizon=32, seed=0):
        self.n, self.horizon = num_envs, horizon
        self.g = torch.Generator().manual_seed(seed)
        self.level = torch.tensor(levels).float()[torch.arange(num_envs) % len(levels)]
        self.unit = (1.0 + 1.5 * self.level)[:, None]
        self.drag = (0.9 - 0.1 * self.level)[:, None]
        self.reset()

    def rand(self, *shape):
        return torch.rand(*shape, generator=self.g)

    def reset(self):
        self.t = 0
        self.pos, self.vel = 2 * self.rand(self.n, 2) - 1, torch.zeros(self.n, 2)
        self.goal = 2 * self.rand(self.n, 2) - 1
        return self.obs()

    def obs(self):
        height = self.level[:, None] * 4 + 0.1 * self.rand(self.n, 2)
        return torch.cat([self.pos * self.unit, self.vel * self.unit, self.goal * self.unit, height], -1)

    def step(self, action):
        self.vel = self.drag * self.vel + 0.1 * action.clamp(-1, 1)
        self.pos = (self.pos + self.vel).clamp(-2, 2)
        reward = -(self.pos - self.goal).norm(dim=-1)
        self.t += 1
        done = self.t >= self.horizon
        return (self.reset() if done else self.obs()), reward, done
