import math

import torch


class CartPoles:
    """Vectorised pole balancing, Euler steps, automatic resets."""

    def __init__(self, n, generator, limit=200):
        self.n, self.gen, self.limit = n, generator, limit
        self.state = torch.empty(n, 4).uniform_(-0.05, 0.05, generator=generator)
        self.age = torch.zeros(n)
        self.lengths = []

    def step(self, action):
        x, v, th, w = self.state.unbind(1)
        force = action.float() * 20.0 - 10.0
        c, s = th.cos(), th.sin()
        tmp = (force + 0.05 * w * w * s) / 1.1
        acc_th = (9.8 * s - c * tmp) / (0.5 * (4.0 / 3.0 - 0.1 * c * c / 1.1))
        acc_x = tmp - 0.05 * acc_th * c / 1.1
        dt = 0.02
        self.state = torch.stack([x + dt * v, v + dt * acc_x, th + dt * w, w + dt * acc_th], dim=1)
        self.age += 1
        fell = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 12 * math.pi / 180)
        timeout = (self.age >= self.limit) & ~fell
        final = self.state.clone()
        over = fell | timeout
        if over.any():
            self.lengths.extend(self.age[over].tolist())
            k = int(over.sum())
            self.state[over] = torch.empty(k, 4).uniform_(-0.05, 0.05, generator=self.gen)
            self.age[over] = 0
        return self.state.clone(), torch.ones(self.n), fell, timeout, final
