import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


class ShardFiles(IterableDataset):
    """Every worker process owns the shards rank, rank+world, ...; the shards have no common length."""

    SIZES = [70, 33, 51, 64, 28, 90, 17]

    def __init__(self, rank, world):
        self.mine = [(i, n) for i, n in enumerate(self.SIZES) if i % world == rank]

    def __iter__(self):
        for shard, n in self.mine:
            g = torch.Generator().manual_seed(shard)
            x = torch.randn(n, 16, generator=g)
            y = (x[:, :4].sum(1, keepdim=True) > 0).float()
            yield from zip(x, y)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        return self.out(self.body(x))


def run_epoch(epoch, ddp, opt, loader, lossf):
    seen = 0
    with Join([ddp, opt], divide_by_initial_world_size=False):
        for x, y in loader:
            opt.zero_grad()
            loss = lossf(ddp(x), y)
            loss.backward()
            opt.step()
            seen += len(x)
    stats = torch.tensor([seen, 1.0])
    dist.all_reduce(stats)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: {int(stats[0])} samples, last local loss {loss.item():.3f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    ddp = DDP(Net())
    opt = ZeroRedundancyOptimizer(ddp.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3)
    loader = DataLoader(ShardFiles(rank, world), batch_size=8)
    lossf = nn.BCEWithLogitsLoss()
    for epoch in range(int(os.environ.get("EPOCHS", 4))):
        run_epoch(epoch, ddp, opt, loader, lossf)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
