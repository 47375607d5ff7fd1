import numpy as np


class CorridorEnv:
    """Agent walks a noisy corridor; the goal moves when it is reached, a few goals make an episode."""

    obs_dim = 6
    num_actions = 3

    def __init__(self, seed, length=24, horizon=120, goals=6):
        self.rng = np.random.default_rng(seed)
        self.length, self.horizon, self.goals = length, horizon, goals

    def reset(self):
        self.pos = float(self.rng.integers(1, self.length - 1))
        self.goal = float(self.rng.integers(1, self.length - 1))
        self.t, self.hits = 0, 0
        return self._obs()

    def _obs(self):
        d = self.goal - self.pos
        return np.array([self.pos / self.length, self.goal / self.length, np.sign(d), abs(d) / self.length,
                         self.t / self.horizon, self.rng.normal(0, 0.05)], dtype=np.float32)

    def step(self, action):
        before = abs(self.goal - self.pos)
        self.pos = float(np.clip(self.pos + (action - 1) + self.rng.normal(0, 0.2), 0, self.length))
        self.t += 1
        reward = 0.1 * (before - abs(self.goal - self.pos))
        if abs(self.goal - self.pos) < 0.7:
            reward += 1.0
            self.hits += 1
            self.goal = float(self.rng.integers(1, self.length - 1))
        done = self.t >= self.horizon or self.hits >= self.goals
        return self._obs(), reward, done, {"hits": self.hits, "steps": self.t}
