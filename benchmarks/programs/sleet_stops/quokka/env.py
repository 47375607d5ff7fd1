import torch


class Pole:
    """A batch of balancing poles."""

    def __init__(self, n, gen):
        self.n, self.gen = n, gen
        self.state = self._fresh(n)
        self.age = torch.zeros(n)

    def _fresh(self, n):
        return (torch.rand(n, 4, generator=self.gen) - 0.5) * 0.1

    def step(self, action):
        x, v, th, w = self.state.unbind(1)
        push = action.float() * 20 - 10
        sin, cos = th.sin(), th.cos()
        tmp = (push + 0.05 * w * w * sin) / 1.1
        acc_w = (9.8 * sin - cos * tmp) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1))
        acc_x = tmp - 0.05 * acc_w * cos / 1.1
        dt = 0.02
        self.state = torch.stack([x + dt * v, v + dt * acc_x, th + dt * w, w + dt * acc_w], 1)
        self.age += 1
        done = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 0.21) | (self.age >= 200)
        ages = self.age[done].tolist()
        if done.any():
            self.state[done] = self._fresh(int(done.sum()))
            self.age[done] = 0
        return self.state.clone(), torch.ones(self.n), done.float(), ages
