"""Streamed shards: order agreed by a common seed, split by process and by worker, endless."""
import argparse
import itertools

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class ShardStream(IterableDataset):
    def __init__(self, shards, rows, rank, world, seed, buffer=24):
        self.shards, self.rows = shards, rows
        self.rank, self.world, self.seed, self.buffer = rank, world, seed, buffer

    def read(self, shard):
        rng = np.random.default_rng(10_000 + shard)
        x = rng.normal(size=(self.rows, 10)).astype(np.float32)
        y = (x[:, 0] - x[:, 1] > 0).astype(np.int64)
        yield from zip(x, y)

    def rows_of(self, epoch, worker, workers):
        order = np.random.default_rng([self.seed, epoch]).permutation(self.shards)
        mine = order[self.rank::self.world][worker::workers]
        return itertools.chain.from_iterable(self.read(int(s)) for s in mine)

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        rng = np.random.default_rng([self.seed, self.rank, worker])
        held = []
        for epoch in itertools.count():
            for row in self.rows_of(epoch, worker, workers):
                held.append(row)
                if len(held) >= self.buffer:
                    k = int(rng.integers(len(held)))
                    held[k], held[-1] = held[-1], held[k]
                    yield held.pop()


class Loop:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.model = DDP(nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 2)))
        torch.manual_seed(args.seed + 1 + self.rank)
        stream = ShardStream(16, 20, self.rank, self.world, args.seed)
        self.loader = DataLoader(stream, batch_size=args.batch, num_workers=args.workers)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def run(self):
        for step, (x, y) in enumerate(itertools.islice(self.loader, self.args.steps), 1):
            x = x + 0.05 * torch.randn_like(x)
            loss = F.cross_entropy(self.model(x), y)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            if step % 20 == 0 and self.rank == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--seed", type=int, default=77)
    loop = Loop(p.parse_args())
    loop.run()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.barrier()
    dist.destroy_process_group()
