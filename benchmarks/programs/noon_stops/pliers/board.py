import time

import torch.distributed as dist


class Board:
    """Small key board on the job's store; readers poll so that no collective is open meanwhile."""

    def __init__(self):
        self.store = dist.PrefixStore("board", dist.group.WORLD.get_group_store())

    def post(self, key, value):
        self.store.set(key, str(value))

    def poll(self, key, interval=0.2, limit=600.0):
        end = time.monotonic() + limit
        while not self.store.check([key]):
            if time.monotonic() > end:
                raise TimeoutError(key)
            time.sleep(interval)
        return float(self.store.get(key))
