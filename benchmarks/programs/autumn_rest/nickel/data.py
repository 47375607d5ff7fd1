import json
import os

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


def write_records(path, rows=6000, width=48, seed=0):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(width, generator=g)
    with open(path + ".tmp", "w") as f:
        for i in range(rows):
            x = torch.randn(width, generator=g)
            f.write(json.dumps({"id": i, "x": x.tolist(), "y": float(torch.sin(x @ w))}) + "\n")
    os.replace(path + ".tmp", path)


class JsonRecords(Dataset):
    """Rows of a jsonl file. The file is opened on first use, in the process that reads it."""

    def __init__(self, path, rows, limit):
        self.path, self.rows, self.limit = path, rows, limit
        self._table = None

    def _open(self):
        table = []
        with open(self.path) as f:
            for line in f:
                row = json.loads(line)
                table.append((torch.tensor(row["x"]), row["y"]))
        return table

    def __len__(self):
        return self.limit

    def __getitem__(self, i):
        if self._table is None:
            self._table = self._open()
        return self._table[i % self.rows]


class DataModule:
    def __init__(self, path, rows, limit, batch, workers):
        self.dataset = JsonRecords(path, rows, limit)
        self.batch, self.workers = batch, workers
        self.sampler = DistributedSampler(self.dataset, shuffle=True, seed=9)

        self.loader = DataLoader(
            self.dataset,
            batch_size=self.batch,
            sampler=self.sampler,
            num_workers=self.workers,
            drop_last=True,
            persistent_workers=self.workers > 0,
        )

    def train_loader(self, epoch):
        self.sampler.set_epoch(epoch)
        return self.loader
