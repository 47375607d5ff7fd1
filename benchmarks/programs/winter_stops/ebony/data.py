import torch


class SensorStream:
    """Regression windows from plant sensors; some units have glitchy calibration."""

    def __init__(self, unit, width, batch, seed=0):
        self.width, self.batch, self.unit = width, batch, unit
        self.gen = torch.Generator().manual_seed(seed * 97 + unit)
        self.mix = torch.randn(width, 4, generator=torch.Generator().manual_seed(seed)) / width**0.5
        self.count = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.count += 1
        x = torch.randn(self.batch, self.width, generator=self.gen)
        y = torch.tanh(x @ self.mix)
        if self.unit == 2 and self.count % 73 == 0:
            x[: self.batch // 4] *= 30.0
            y[: self.batch // 4] *= 25.0
        return x, y
