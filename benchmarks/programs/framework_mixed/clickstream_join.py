import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


class ShardReader:
    """Reads the shards that belong to this rank, as many as there are."""

    sizes = [130, 90, 160, 75, 140]

    def __init__(self, rank, world, batch):
        self.mine = list(range(len(self.sizes)))[rank::world]
        self.batch = batch

    def epoch(self, epoch):
        for shard in self.mine:
            g = torch.Generator().manual_seed(1000 * epoch + shard)
            order = torch.randperm(self.sizes[shard], generator=g)
            gd = torch.Generator().manual_seed(shard)
            x = torch.randn(self.sizes[shard], 16, generator=gd)
            y = (x.sum(1) > 0).float()
            for i in range(0, len(order), self.batch):
                idx = order[i : i + self.batch]
                yield x[idx], y[idx]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=16)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = DDP(nn.Sequential(nn.Linear(16, 128), nn.SiLU(), nn.Linear(128, 1)))
    opt = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=2e-3)
    reader = ShardReader(rank, world, args.batch)
    for epoch in range(args.epochs):
        n, total = 0, 0.0
        with Join([model, opt]):
            for x, y in reader.epoch(epoch):
                opt.zero_grad(set_to_none=True)
                loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
                loss.backward()
                opt.step()
                n += len(x)
                total += loss.item() * len(x)
        stats = torch.tensor([total, n], dtype=torch.float64)
        dist.all_reduce(stats)
        print(f"rank {rank} epoch {epoch} saw {n} rows, global loss {stats[0] / stats[1]:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
