import functools
import logging

import torch.distributed as dist

log = logging.getLogger("board")


class Gathered:
    """A list that grows on every rank by its own; ``everything`` is the whole job's."""

    def __init__(self, group=None):
        self.group = group
        self.own = []
        self._whole = None

    def add(self, item):
        self.own.append(item)
        self._whole = None

    def __bool__(self):
        return bool(self.everything)

    @property
    def everything(self):
        if self._whole is None:
            parts = [None] * dist.get_world_size(self.group)
            dist.all_gather_object(parts, self.own, group=self.group)
            self._whole = [x for p in parts for x in p]
        return self._whole


class Board:
    """What the detector found odd in an epoch."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.hard = Gathered()

    def see(self, losses, ids, bar):
        for l, i in zip(losses.tolist(), ids.tolist()):
            if l > bar:
                self.hard.add((round(l, 3), i))

    @functools.cached_property
    def speaks(self):
        return dist.get_rank() == 0

    def close_epoch(self, epoch):
        found = sorted(self.hard.everything, reverse=True)
        if self.speaks:
            log.info("epoch %d: %d hard ones, top %s", epoch, len(found), found[:3])
        again = [i for _, i in found]
        self.reset()
        return again
