"""Vibration windows of rotating machines, with their condition labels."""
import csv
import random

import torch
from torch.utils.data import Dataset

CONDITIONS = ["normal", "imbalance", "bearing", "gear", "looseness"]


def build_table(path, rows, seed):
    """Stand-in for the export of the measuring campaign."""
    rng = random.Random(seed)
    with open(path, "w", newline="") as handle:
        out = csv.writer(handle)
        out.writerow(["machine", "rpm", "condition"])
        for i in range(rows):
            condition = CONDITIONS[rng.randrange(len(CONDITIONS))]
            if i == 409:
                condition = condition.capitalize()
            out.writerow([f"m{i % 17:02d}", rng.randrange(700, 3000), condition])


class VibrationWindows(Dataset):
    def __init__(self, table, window=128):
        with open(table, newline="") as handle:
            self.rows = list(csv.DictReader(handle))
        self.window = window
        self.index = {name: i for i, name in enumerate(CONDITIONS)}

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        label = self.index[row["condition"]]
        gen = torch.Generator().manual_seed(i)
        time_axis = torch.linspace(0, 1, self.window)
        base = float(row["rpm"]) / 600.0
        signal = torch.sin(2 * torch.pi * base * time_axis)
        signal = signal + 0.6 * torch.sin(2 * torch.pi * base * (label + 2) * time_axis)
        signal = signal + 0.3 * torch.randn(self.window, generator=gen)
        return signal.unsqueeze(0), label
