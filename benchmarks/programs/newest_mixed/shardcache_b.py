import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class SoftLock:
    def __init__(self, path, poll=0.02):
        self.path, self.poll = path, poll

    def acquire(self):
        while True:
            try:
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                return
            except FileExistsError:
                time.sleep(self.poll)

    def release(self):
        os.unlink(self.path)


class CorruptShard(Exception):
    pass


class ShardCache:
    def __init__(self, root):
        self.root = root
        os.makedirs(root, exist_ok=True)

    def _decode(self, index):
        gen = torch.Generator().manual_seed(index)
        rows = torch.randn(64, 14, generator=gen)
        if index % 5 == 3:
            raise CorruptShard(index)
        return rows

    def fetch(self, index):
        target = os.path.join(self.root, f"{index}.pt")
        lock = SoftLock(os.path.join(self.root, "cache.lock"))
        lock.acquire()
        if not os.path.exists(target):
            torch.save(self._decode(index), target)
        lock.release()
        return torch.load(target)


class ShardStream:
    def __init__(self, cache, rank, world, shards):
        self.cache, self.rank, self.world, self.shards = cache, rank, world, shards
        self.skipped = []

    def shard(self, i):
        try:
            return self.cache.fetch(i * self.world + self.rank)
        except CorruptShard as e:
            self.skipped.append(e.args[0])
            return torch.zeros(64, 14)

    def __iter__(self):
        for i in range(self.shards):
            yield from self.shard(i).split(16)


def train(stream, rank):
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(14, 48), nn.Tanh(), nn.Linear(48, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, x in enumerate(stream):
        loss = (model(x).squeeze(1) - x[:, 0]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.03)
        if rank == 0 and step % 4 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    token = [f"/tmp/shards_{os.getpid()}"]
    dist.broadcast_object_list(token, src=0)
    stream = ShardStream(ShardCache(token[0]), rank, world, shards=6)
    train(stream, rank)
    if rank == 0:
        print("skipped", stream.skipped, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
