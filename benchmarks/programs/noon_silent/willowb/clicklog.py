"""Streaming reader for the click log. The log is a list of shard files."""
import random

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info


class ShardFile:
    """A shard of the log; rows are produced from the shard id like a file on disk."""

    def __init__(self, shard_id, rows, num_users, num_items, num_ctx):
        self.shard_id, self.rows = shard_id, rows
        self.num_users, self.num_items, self.num_ctx = num_users, num_items, num_ctx

    def read(self):
        rng = np.random.RandomState(10_000 + self.shard_id)
        taste = np.random.RandomState(5)
        u_vec = taste.randn(self.num_users, 6)
        i_vec = taste.randn(self.num_items, 6)
        users = rng.randint(0, self.num_users, self.rows)
        items = (rng.zipf(1.3, self.rows) - 1) % self.num_items
        ctx = rng.randn(self.rows, self.num_ctx).astype(np.float32)
        score = (u_vec[users] * i_vec[items]).sum(1) + ctx[:, 0]
        click = (rng.rand(self.rows) < 1 / (1 + np.exp(-score))).astype(np.float32)
        for row in zip(users, items, ctx, click):
            yield row


class ClickStream(IterableDataset):
    def __init__(self, shards, batch_size, buffer_size=2048, seed=0):
        self.shards = shards
        self.batch_size = batch_size
        self.buffer_size = buffer_size
        self.seed = seed
        self.epoch = 0
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _my_shards(self):
        order = list(self.shards)
        random.Random(self.seed + self.epoch).shuffle(order)
        order = order[self.rank::self.world]
        info = get_worker_info()
        if info is not None:
            order = order[info.id::info.num_workers]
        return order

    def _rows(self):
        rng = random.Random(self.seed * 1000 + self.epoch)
        buf = []
        for shard in self._my_shards():
            for row in shard.read():
                if len(buf) < self.buffer_size:
                    buf.append(row)
                    continue
                j = rng.randrange(self.buffer_size)
                out, buf[j] = buf[j], row
                yield out
        rng.shuffle(buf)
        yield from buf

    def __iter__(self):
        batch = []
        for row in self._rows():
            batch.append(row)
            if len(batch) == self.batch_size:
                u, i, c, y = zip(*batch)
                batch = []
                yield (torch.tensor(np.array(u)), torch.tensor(np.array(i)),
                       torch.from_numpy(np.stack(c)), torch.tensor(np.array(y)))
