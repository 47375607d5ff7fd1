from dataclasses import dataclass
from typing import Callable, List


@dataclass
class Chore:
    name: str
    every: int
    action: Callable[[], None]
    urgency: Callable[[], float]

    def due(self, it: int) -> bool:
        return it % self.every == 0


class ChoreBoard:
    """Runs the chores that are due, the most frequent one first."""

    def __init__(self, chores: List[Chore]):
        self.chores = chores
        self.history = []

    def tick(self, it: int):
        waiting = [c for c in self.chores if c.due(it)]
        waiting.sort(key=lambda c: (c.every, c.name))
        for chore in waiting:
            chore.action()
            self.history.append((it, chore.name))
