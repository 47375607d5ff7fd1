import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class ShardedStream(IterableDataset):
    def __init__(self, shards, rows_per_shard, rank, world):
        self.shards = shards
        self.rows_per_shard = rows_per_shard
        self.rank = rank
        self.world = world
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def read(self, shard):
        g = torch.Generator().manual_seed(1000 + shard)
        x = torch.randn(self.rows_per_shard, 10, generator=g)
        order = torch.randperm(self.rows_per_shard, generator=torch.Generator().manual_seed(self.epoch * 77 + shard))
        for i in order.tolist():
            yield x[i], x[i, :3].prod().sign().clamp(min=0).long()

    def __iter__(self):
        info = get_worker_info()
        workers = info.num_workers if info else 1
        worker = info.id if info else 0
        reader = self.rank * workers + worker
        readers = self.world * workers
        for shard in range(reader, self.shards, readers):
            yield from self.read(shard)


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--batch-size", type=int, default=16)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stream = ShardedStream(shards=8, rows_per_shard=64, rank=rank, world=world)
    loader = DataLoader(stream, batch_size=args.batch_size, num_workers=args.workers)
    model = DDP(build_model())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        stream.set_epoch(epoch)
        seen = 0
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += len(y)
        if rank == 0:
            print(f"epoch {epoch} rows {seen} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
