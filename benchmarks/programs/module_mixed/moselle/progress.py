from dataclasses import dataclass


@dataclass
class Progress:
    """How far the training is, in samples; the epoch follows from it."""

    dataset_size: int
    samples: int = 0
    updates: int = 0

    def advance(self, n):
        self.samples += n
        self.updates += 1

    @property
    def epoch(self):
        return self.samples // self.dataset_size

    def describe(self):
        return f"epoch {self.samples / self.dataset_size:.2f} update {self.updates}"
