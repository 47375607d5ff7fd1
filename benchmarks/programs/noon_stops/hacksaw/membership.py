import os
from datetime import timedelta

import torch.distributed as dist


def base_store():
    return dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
                         timeout=timedelta(minutes=10))


class Membership:
    """Rounds of training; each round has its own process group over the ranks that take part."""

    def __init__(self):
        self.me = int(os.environ["RANK"])
        self.store = base_store()
        self.round = 0

    def enter(self, members):
        self.round += 1
        if self.me not in members:
            return False
        store = dist.PrefixStore(f"round{self.round}", self.store)
        dist.init_process_group("gloo", store=store, rank=members.index(self.me), world_size=len(members))
        return True

    def leave(self):
        dist.barrier()
        dist.destroy_process_group()

    def announce(self, key, value):
        self.store.set(key, value)

    def await_key(self, key):
        self.store.wait([key], timedelta(minutes=10))
        return self.store.get(key).decode()
