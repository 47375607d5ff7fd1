import time

import torch.distributed as dist


class ReadyBoard:
    """Counts how many workers have fetched the shard of an epoch."""

    def __init__(self, world_size, poll=0.1):
        base = dist.distributed_c10d._get_default_store()
        self.store = dist.PrefixStore("ready-board", base)
        self.world_size = world_size
        self.poll = poll

    def announce(self, epoch):
        self.store.add(f"fetched/{epoch}", 1)

    def wait(self, epoch):
        while self.store.add(f"fetched/{epoch}", 0) != self.world_size:
            time.sleep(self.poll)
