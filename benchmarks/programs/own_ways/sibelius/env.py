import numpy as np


class CartBatch:
    """Vectorised point-mass tracking task.

    Every instance has its own mass, drag and sensor scale, drawn from the task
    distribution; observations are (position, velocity, target, wind) in raw units.
    """

    obs_dim, act_dim = 4, 1

    def __init__(self, n, seed, horizon=24, scale=1.0):
        self.n, self.horizon = n, horizon
        self.rng = np.random.default_rng(seed)
        self.scale = scale
        self.reset_all()

    def reset_all(self):
        self.mass = self.rng.uniform(0.8, 1.6, self.n)
        self.pos = self.rng.normal(0, 2.0 * self.scale, self.n)
        self.vel = np.zeros(self.n)
        self.target = self.rng.normal(3.0 * self.scale, 4.0 * self.scale, self.n)
        self.wind = self.rng.normal(0.0, 0.2, self.n)
        self.t = 0
        return self.obs()

    def obs(self):
        return np.stack([self.pos * 10, self.vel * 3, self.target * 10, self.wind],
                        axis=1).astype(np.float32)

    def step(self, action):
        force = np.clip(action[:, 0], -3, 3)
        self.vel += 0.25 * (force + self.wind - 0.2 * self.vel) / self.mass
        self.pos += 0.25 * self.vel
        reward = -np.abs(self.pos - self.target) / self.scale - 0.01 * force ** 2
        self.t += 1
        done = self.t >= self.horizon
        obs = self.reset_all() if done else self.obs()
        return obs, reward.astype(np.float32), done
