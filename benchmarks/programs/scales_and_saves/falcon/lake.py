import random


class Lake:
    """6x6 frozen lake, start anywhere, reach the far corner, do not fall in."""

    SIZE = 6
    HOLES = {(1, 3), (2, 1), (3, 4), (4, 2)}
    GOAL = (5, 5)
    MOVES = [(-1, 0), (1, 0), (0, -1), (0, 1)]

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.reset()

    def reset(self):
        while True:
            self.at = (self.rng.randrange(self.SIZE), self.rng.randrange(self.SIZE))
            if self.at not in self.HOLES and self.at != self.GOAL:
                break
        self.age = 0
        return self.observe()

    def observe(self):
        x = [0.0] * (self.SIZE * self.SIZE)
        x[self.at[0] * self.SIZE + self.at[1]] = 1.0
        return x

    def step(self, action):
        if self.rng.random() < 0.1:
            action = self.rng.randrange(4)
        d = self.MOVES[action]
        clamp = lambda v: min(self.SIZE - 1, max(0, v))
        self.at = (clamp(self.at[0] + d[0]), clamp(self.at[1] + d[1]))
        self.age += 1
        if self.at in self.HOLES:
            return self.observe(), -1.0, True
        if self.at == self.GOAL:
            return self.observe(), 1.0, True
        return self.observe(), -0.01, self.age >= 40
