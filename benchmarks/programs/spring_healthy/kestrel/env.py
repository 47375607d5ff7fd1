import math

import numpy as np


class PendulumCart:
    """Cart with a pole, continuous force. Ends when the pole falls or after `limit` frames."""

    def __init__(self, limit=160):
        self.limit = limit

    def reset(self, rng):
        self.s = rng.uniform(-0.08, 0.08, size=4)
        self.t = 0
        return self.s.copy()

    def step(self, force):
        x, v, th, w = self.s
        f = 10.0 * max(-1.0, min(1.0, force))
        c, s = math.cos(th), math.sin(th)
        tmp = (f + 0.05 * w * w * s) / 1.1
        acc_th = (9.8 * s - c * tmp) / (0.5 * (4.0 / 3.0 - 0.1 * c * c / 1.1))
        acc = tmp - 0.05 * acc_th * c / 1.1
        self.s = np.array([x + 0.02 * v, v + 0.02 * acc, th + 0.02 * w, w + 0.02 * acc_th])
        self.t += 1
        done = abs(self.s[0]) > 2.4 or abs(self.s[2]) > 0.21 or self.t >= self.limit
        return self.s.copy(), 1.0 - 0.05 * abs(self.s[0]), done
