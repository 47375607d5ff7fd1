import itertools
import json

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info


def write_shards(folder, shards, rows, seed):
    """Uneven JSON-lines shards of two-class event records."""
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(10, generator=torch.Generator().manual_seed(1))
    serial = 0
    for s in range(shards):
        n = rows + 7 * (s % 3)
        x = torch.randn(n, 10, generator=g)
        y = ((x @ w) + 0.8 * x[:, 0] * x[:, 1] > 0).long()
        with open(f"{folder}/part-{s:03d}.jsonl", "w") as f:
            for i in range(n):
                f.write(json.dumps({"id": serial, "x": [round(v, 4) for v in x[i].tolist()], "y": int(y[i])}) + "\n")
                serial += 1
    return serial


class ShardStream(IterableDataset):
    """Endless stream; whole files go to one reader, where a reader is a (rank, worker) pair."""

    def __init__(self, files, seed, buffer=64):
        self.files, self.seed, self.buffer = sorted(files), seed, buffer
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def _reader(self):
        info = get_worker_info()
        wid, count = (info.id, info.num_workers) if info else (0, 1)
        return self.rank * count + wid, self.world * count

    def _rows(self, reader, readers):
        for epoch in itertools.count():
            g = torch.Generator().manual_seed(self.seed * 10007 + epoch)
            order = torch.randperm(len(self.files), generator=g).tolist()
            for k in order[reader::readers]:
                with open(self.files[k]) as f:
                    for line in f:
                        yield json.loads(line)

    def __iter__(self):
        reader, readers = self._reader()
        g = torch.Generator().manual_seed(self.seed * 31 + reader)
        pool = []
        for row in self._rows(reader, readers):
            if len(pool) < self.buffer:
                pool.append(row)
                continue
            j = int(torch.randint(0, self.buffer, (1,), generator=g))
            row, pool[j] = pool[j], row
            yield row["id"], torch.tensor(row["x"]), row["y"]
