"""Rank roles: the last rank prepares the shards and leaves, the others train."""
import json
import logging
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

log = logging.getLogger("prepare")


class Preparer:
    def __init__(self, root, shards, rows, dim):
        self.root = Path(root)
        self.shards, self.rows, self.dim = shards, rows, dim

    def run(self, store):
        teacher = torch.randn(self.dim, 3, generator=torch.Generator().manual_seed(0))
        for s in range(self.shards):
            gen = torch.Generator().manual_seed(500 + s)
            x = torch.randn(self.rows, self.dim, generator=gen)
            y = (x @ teacher + 0.3 * torch.randn(self.rows, 3, generator=gen)).argmax(1)
            tmp = self.root / f"shard{s}.partial"
            torch.save((x, y), tmp)
            os.replace(tmp, self.root / f"shard{s}.pt")
            time.sleep(0.6)
            store.set(f"shard{s}", json.dumps({"rows": self.rows}))
            log.info("shard %d ready", s)


class ShardReader:
    """Blocks until the preparer has announced a shard."""

    def __init__(self, root, store):
        self.root = Path(root)
        self.store = store

    def read(self, s):
        meta = json.loads(self.store.get(f"shard{s}").decode())
        x, y = torch.load(self.root / f"shard{s}.pt")
        if len(x) != meta["rows"]:
            raise RuntimeError(f"shard {s} is incomplete")
        return x, y


def prefixed_store(name):
    return dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
