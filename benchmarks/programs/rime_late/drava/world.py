"""A batch of point masses that must be steered to the origin."""
import torch


class PointMasses:
    def __init__(self, count, generator):
        self.count = count
        self.generator = generator
        self.reset()

    def reset(self):
        self.state = torch.randn(self.count, 4, generator=self.generator)
        self.age = 0

    def observe(self):
        return self.state.clone()

    def step(self, action):
        position, speed = self.state[:, :2], self.state[:, 2:]
        speed = 0.95 * speed + 0.2 * action
        position = position + 0.1 * speed
        self.state = torch.cat([position, speed], 1)
        self.age += 1
        reward = -0.1 * (position.pow(2).sum(1, keepdim=True) + 0.05 * action.pow(2).sum(1, keepdim=True))
        following = self.observe()
        if self.age >= 40:
            self.reset()
        return following, reward


class Memory:
    def __init__(self, size, obs, act):
        self.data = [torch.zeros(size, n) for n in (obs, act, 1, obs)]
        self.size, self.next, self.filled = size, 0, 0

    def add(self, *parts):
        n = len(parts[0])
        at = (torch.arange(n) + self.next) % self.size
        for store, part in zip(self.data, parts):
            store[at] = part
        self.next = (self.next + n) % self.size
        self.filled = min(self.size, self.filled + n)

    def draw(self, n, generator):
        at = torch.randint(0, self.filled, (n,), generator=generator)
        return [store[at] for store in self.data]
