import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset


class LogLines(IterableDataset):
    """Synthetic service logs, files interleaved, as fixed-size token rows.

    Files are read by the process they belong to.
    """

    def __init__(self, files, rows_per_file, length=24, vocab=64, seed=0, rank=None, world=None):
        self.files, self.rows = list(files), rows_per_file
        self.length, self.vocab, self.seed = length, vocab, seed
        ready = dist.is_available() and dist.is_initialized()
        self.rank = rank if rank is not None else (dist.get_rank() if ready else 0)
        self.world = world if world is not None else (dist.get_world_size() if ready else 1)
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _read(self, number):
        g = torch.Generator().manual_seed(self.seed * 7919 + number)
        stride = 1 + number % 7
        for _ in range(self.rows):
            start = int(torch.randint(self.vocab, (1,), generator=g))
            row = (start + stride * torch.arange(self.length)) % self.vocab
            noise = torch.randint(self.vocab, (self.length,), generator=g)
            row = torch.where(torch.rand(self.length, generator=g) < 0.1, noise, row)
            yield row

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        mine = self.files[self.rank::self.world]
        readers = [self._read(mine[i]) for i in torch.randperm(len(mine), generator=g).tolist()]
        for rows in zip(*readers):
            for row in rows:
                yield {"input_ids": row, "labels": row}
