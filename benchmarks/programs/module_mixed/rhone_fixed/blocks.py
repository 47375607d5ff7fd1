import torch
import torch.distributed as dist

from store import ObjectStore, Throttled, retry


class BlockSource:
    """Rank 0 chooses the next volume; every rank fetches its own block of it."""

    def __init__(self, volumes, control, quota=16):
        self.volumes, self.control = volumes, control
        self.store = ObjectStore(quota)
        self.rank = dist.get_rank()
        self.gen = torch.Generator().manual_seed(90)

    def _pick(self):
        choice = torch.randint(0, self.volumes, (1,), generator=self.gen)
        dist.broadcast(choice, src=0, group=self.control)
        return int(choice)

    @retry(times=4, wait=0.05, exceptions=(Throttled,))
    def _fetch(self, volume):
        return self.store.get((volume, self.rank))

    def next_block(self):
        return self._fetch(self._pick())

    def batches(self, steps):
        for _ in range(steps):
            x = self.next_block()
            yield x, (x[:, 0] * x[:, 1] + x[:, 2]).unsqueeze(1)
