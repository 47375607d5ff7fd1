import collections
import statistics


class LossGuard:
    """Refuses updates whose loss lies far above the recent history."""

    def __init__(self, window=16, sigma=4.0, warmup=8):
        self.history = collections.deque(maxlen=window)
        self.sigma = sigma
        self.warmup = warmup
        self.rejected = 0

    def accepts(self, value):
        if len(self.history) >= self.warmup:
            mean = statistics.fmean(self.history)
            spread = statistics.pstdev(self.history) + 1e-3
            if value > mean + self.sigma * spread:
                self.rejected += 1
                return False
        self.history.append(value)
        return True
