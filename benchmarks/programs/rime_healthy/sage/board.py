"""Tiny notice board on the store of the process group."""
import json
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store


class Board:
    def __init__(self, name):
        self.store = dist.PrefixStore(name, _get_default_store())

    def post(self, key, value):
        self.store.set(key, json.dumps(value))

    def read(self, key, minutes=10):
        self.store.wait([key], timedelta(minutes=minutes))
        return json.loads(self.store.get(key))
