import numpy as np
import torch
import torch.nn as nn


def synthetic_load(n=4000, seed=9):
    rng = np.random.default_rng(seed)
    t = np.arange(n)
    y = np.sin(2 * np.pi * t / 24) + 0.5 * np.sin(2 * np.pi * t / 168) + 0.0002 * t + rng.normal(0, 0.15, n)
    return torch.tensor(y, dtype=torch.float32)


class Windows:
    def __init__(self, series, context=72, horizon=12, val_part=0.2):
        win = series.unfold(0, context + horizon, 1)
        cut = int(len(win) * (1 - val_part))
        self.train, self.val = win[:cut - context - horizon], win[cut:]
        self.context = context

    def batch(self, size, generator):
        rows = self.train[torch.randint(len(self.train), (size,), generator=generator)]
        return rows[:, :self.context], rows[:, self.context:]

    def validation(self):
        return self.val[:, :self.context], self.val[:, self.context:]


class GRUForecaster(nn.Module):
    def __init__(self, hidden=32, horizon=12, dropout=0.0):
        super().__init__()
        self.rnn = nn.GRU(1, hidden, batch_first=True)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, horizon)

    def forward(self, x):
        last = x[:, -1:]
        h, _ = self.rnn((x - last).unsqueeze(-1))
        return self.head(self.drop(h[:, -1])) + last
