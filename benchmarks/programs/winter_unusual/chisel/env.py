import torch


class PoleBatch:
    """Cart-pole dynamics for [members, episodes] states at once, continuous force."""
    g, mc, mp, length, dt = 9.8, 1.0, 0.1, 0.5, 0.02

    def __init__(self, members, episodes, seed):
        gen = torch.Generator().manual_seed(seed)
        s0 = (torch.rand(episodes, 4, generator=gen) - 0.5) * 0.4
        self.s = s0.expand(members, -1, -1).clone()
        self.alive = torch.ones(members, episodes, dtype=torch.bool)

    def step(self, force):
        x, xd, th, thd = self.s.unbind(-1)
        c, s = th.cos(), th.sin()
        m = self.mc + self.mp
        tmp = (10 * force + self.mp * self.length * thd ** 2 * s) / m
        tha = (self.g * s - c * tmp) / (self.length * (4 / 3 - self.mp * c ** 2 / m))
        xa = tmp - self.mp * self.length * tha * c / m
        self.s = torch.stack([x + self.dt * xd, xd + self.dt * xa, th + self.dt * thd, thd + self.dt * tha], -1)
        self.alive &= (self.s[..., 0].abs() < 2.4) & (self.s[..., 2].abs() < 0.21)
        return self.alive.float() * (1 - 0.05 * force ** 2)
