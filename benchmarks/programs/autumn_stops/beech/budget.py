import time


class TimeBudget:
    """Soft limit of a queue slot: stop early enough to write the final state."""

    def __init__(self, seconds, reserve=0.0):
        self.seconds = seconds
        self.reserve = reserve
        self.started = time.monotonic()

    @property
    def elapsed(self):
        return time.monotonic() - self.started

    def exhausted(self):
        return self.elapsed + self.reserve >= self.seconds
