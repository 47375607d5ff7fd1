import argparse
import itertools

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

SHARDS = {"a": 70, "b": 55, "c": 90, "d": 40, "e": 66}


class ShardedEvents(IterableDataset):
    def __init__(self, names, epoch=0):
        self.names, self.epoch = names, epoch

    def __iter__(self):
        for name in self.names:
            g = torch.Generator().manual_seed(sum(map(ord, name)))
            rows = torch.randn(SHARDS[name], 9, generator=g)
            order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(self.epoch))
            for i in order.tolist():
                yield rows[i, :8], rows[i, 8:]


def lockstep(iterator):
    """Yields until the first rank has nothing more."""
    for item in itertools.chain(iterator, itertools.repeat(None)):
        flag = torch.tensor([int(item is not None)])
        dist.all_reduce(flag, op=dist.ReduceOp.MIN)
        if not flag.item():
            return
        yield item


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--bs", type=int, default=8)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    names = sorted(SHARDS)
    torch.manual_seed(4)
    model = DDP(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(a.epochs):
        rolled = names[epoch % len(names) :] + names[: epoch % len(names)]
        loader = DataLoader(ShardedEvents(rolled[rank::world], epoch), batch_size=a.bs, drop_last=True)
        steps = 0
        for x, y in lockstep(iter(loader)):
            loss = nn.functional.huber_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            steps += 1
        if rank == 0:
            print(f"epoch {epoch}: {steps} common steps, loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
