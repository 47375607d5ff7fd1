import datetime
import os

import torch
import torch.distributed as dist


class BestKeeper:
    """Keeps the best weights; every rank learns whether the last evaluation was an improvement.

    Writing can take long on the shared file system, hence a group of its own with a generous timeout.
    """

    def __init__(self, root, rank):
        self.root, self.rank = root, rank
        self.best = float("inf")
        self._group = None

    def offer(self, model, ppl, step):
        if self._group is None:
            self._group = dist.new_group(timeout=datetime.timedelta(hours=4))
        improved = torch.zeros(1, dtype=torch.int64)
        if self.rank == 0 and ppl < self.best:
            self.best = ppl
            torch.save({"model": model.state_dict(), "ppl": ppl, "step": step}, os.path.join(self.root, "best.pt"))
            improved.fill_(1)
        dist.broadcast(improved, src=0, group=self._group)
        return bool(improved)
