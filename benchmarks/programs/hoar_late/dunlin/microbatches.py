class RampupCalculator:
    """Number of micro-batches as a function of the samples seen so far."""

    def __init__(self, start, final, increment, ramp_samples):
        self.start = start
        self.final = final
        self.increment = increment
        steps = max(1, (final - start) // increment)
        self.per_increment = ramp_samples // steps

    def get(self, consumed):
        n = self.start + self.increment * (consumed // self.per_increment)
        return min(n, self.final)
