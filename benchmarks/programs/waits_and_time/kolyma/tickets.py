import time

import torch.distributed as dist


class TicketOffice:
    """Numbers from a shared counter; a number is given out once."""

    def __init__(self, store, rank, world):
        self.store = dist.PrefixStore("tickets", store)
        self.rank, self.world = rank, world

    def claim(self, name, limit):
        while True:
            n = self.store.add(name, 1) - 1
            if n >= limit:
                return
            yield n

    def leave(self):
        """The host of the store stays until everybody has said goodbye."""
        self.store.add("gone", 1)
        if self.rank == 0:
            while self.store.add("gone", 0) < self.world:
                time.sleep(0.05)
