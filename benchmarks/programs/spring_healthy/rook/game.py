import random

LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


class Board:
    """Noughts and crosses. Cells hold +1 for the side to move, -1 for the other."""

    def __init__(self):
        self.cells, self.over, self.won = [0] * 9, False, False

    def legal(self):
        return [i for i, c in enumerate(self.cells) if c == 0]

    def play(self, i):
        self.cells[i] = 1
        self.won = any(all(self.cells[j] == 1 for j in l) for l in LINES)
        self.over = self.won or 0 not in self.cells
        self.cells = [-c for c in self.cells]


class Ring:
    """Replay memory with an upper bound, the oldest entries give way."""

    def __init__(self, capacity, seed):
        self.capacity, self.items, self.at, self.added = capacity, [], 0, 0
        self.random = random.Random(seed)

    def add(self, entry):
        if len(self.items) < self.capacity:
            self.items.append(entry)
        else:
            self.items[self.at] = entry
            self.at = (self.at + 1) % self.capacity
        self.added += 1

    def sample(self, n):
        return self.random.choices(self.items, k=n)
