import math

import torch


class SeriesBank:
    """Synthetic multichannel sensor records, kept in memory."""

    def __init__(self, n_records=64, length=4096, channels=8):
        gen = torch.Generator().manual_seed(7)
        t = torch.arange(length) / 64.0
        freq = torch.rand(n_records, channels, 1, generator=gen) * 3 + 0.2
        phase = torch.rand(n_records, channels, 1, generator=gen) * 2 * math.pi
        noise = torch.randn(n_records, channels, length, generator=gen) * 0.1
        self.records = torch.sin(freq * t + phase) + noise

    def sample(self, batch, window):
        n, _, length = self.records.shape
        rows = torch.randint(0, n, (batch,))
        starts = torch.randint(0, length - window, (batch,))
        return torch.stack([self.records[r, :, s:s + window] for r, s in zip(rows.tolist(), starts.tolist())])


def corrupt(x, ratio):
    keep = torch.rand(x.shape[0], 1, x.shape[2]) > ratio
    return x * keep, ~keep.expand_as(x)
