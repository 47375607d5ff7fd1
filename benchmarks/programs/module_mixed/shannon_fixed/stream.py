import torch
from torch.utils.data import IterableDataset, get_worker_info


class Tape(IterableDataset):
    """A tape of records. A reader takes every n-th record, beginning with its own number."""

    def __init__(self, length, rank, world, transform=None):
        self.length, self.transform = length, transform
        self.rank, self.world = rank, world

    def record(self, i):
        g = torch.Generator().manual_seed(i)
        x = torch.randn(14, generator=g)
        return {"index": i, "x": x, "y": (x[:7] @ x[7:]).clamp(-3, 3)}

    def __iter__(self):
        info = get_worker_info()
        workers = info.num_workers if info is not None else 1
        worker = info.id if info is not None else 0
        for i in range(self.rank * workers + worker, self.length, self.world * workers):
            r = self.record(i)
            yield self.transform(r) if self.transform else r


class Window:
    """A shuffle buffer, seeded per epoch."""

    def __init__(self, source, size, seed):
        self.source, self.size = source, size
        self.gen = torch.Generator().manual_seed(seed)

    def __iter__(self):
        buf = []
        for item in self.source:
            if len(buf) < self.size:
                buf.append(item)
                continue
            j = int(torch.randint(0, self.size, (1,), generator=self.gen))
            buf[j], item = item, buf[j]
            yield item
        yield from buf
