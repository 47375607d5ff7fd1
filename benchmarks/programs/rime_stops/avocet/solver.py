import math

import torch


class Burgers:
    """Explicit advection-diffusion of (u, v) on a periodic grid, sub-stepped to stay stable."""

    def __init__(self, strip, dx, nu=2e-3, cfl=0.4, max_substeps=40):
        self.strip, self.dx, self.nu, self.cfl = strip, dx, nu, cfl
        self.max_substeps = max_substeps

    def substeps(self, field, dt):
        speed = field.abs().amax()
        return min(self.max_substeps, max(1, math.ceil(speed.item() * dt / (self.cfl * self.dx))))

    @torch.no_grad()
    def advance(self, field, dt):
        n = self.substeps(field, dt)
        h = dt / n
        for _ in range(n):
            g = self.strip.exchange(field)
            mid, up, down = g[:, 1:-1], g[:, :-2], g[:, 2:]
            left, right = mid.roll(1, 2), mid.roll(-1, 2)
            dx_ = (right - left) / (2 * self.dx)
            dy_ = (down - up) / (2 * self.dx)
            lap = (left + right + up + down - 4 * mid) / self.dx ** 2
            u, v = mid[0:1], mid[1:2]
            artificial = 0.5 * self.dx * mid.abs()
            field = mid + h * (-(u * dx_ + v * dy_) + (self.nu + artificial) * lap)
        return field, n
