import random
import time

import torch

MOVES = [(0, 1), (0, -1), (1, 0), (-1, 0)]


class GridWorld:
    def __init__(self, seed, assets=0.0, size=9, limit=24):
        self.rng = random.Random(seed)
        self.size, self.limit = size, limit
        self.reload(assets)

    def reload(self, seconds):
        """Stands for reading the map bundle from the asset server."""
        time.sleep(seconds)

    def _obs(self):
        s = self.size
        return torch.tensor([self.x / s, self.y / s, self.gx / s, self.gy / s,
                             (self.gx - self.x) / s, (self.gy - self.y) / s])

    def reset(self):
        r = self.rng.randrange
        self.x, self.y, self.gx, self.gy, self.t = r(self.size), r(self.size), r(self.size), r(self.size), 0
        return self._obs()

    def step(self, a):
        before = abs(self.gx - self.x) + abs(self.gy - self.y)
        dx, dy = MOVES[a]
        self.x = min(max(self.x + dx, 0), self.size - 1)
        self.y = min(max(self.y + dy, 0), self.size - 1)
        self.t += 1
        after = abs(self.gx - self.x) + abs(self.gy - self.y)
        done = after == 0 or self.t >= self.limit
        return self._obs(), 0.1 * (before - after) + (1.0 if after == 0 else 0.0), done
