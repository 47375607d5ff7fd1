import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class RecordStream(IterableDataset):
    def __init__(self, start, stop, seed=0):
        self.start, self.stop, self.seed = start, stop, seed
        self.index, self.num = 0, 1
        self.epoch = 0

    def shard(self, num, index):
        out = RecordStream(self.start, self.stop, self.seed)
        out.num, out.index = num, index
        return out

    def set_epoch(self, epoch):
        self.epoch = epoch

    def make(self, i):
        g = torch.Generator().manual_seed(i)
        x = torch.randn(9, generator=g)
        return x, (x[:3].sum() > x[3:6].sum()).long()

    def __iter__(self):
        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info else (1, 0)
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        ids = (torch.randperm(self.stop - self.start, generator=g) + self.start).tolist()
        for i in ids[self.index::self.num][worker::workers]:
            yield self.make(i)


def build_loaders(args):
    rank, world = dist.get_rank(), dist.get_world_size()
    train, val = RecordStream(0, 320), RecordStream(320, 400)
    train = train.shard(world, rank)
    train_loader = DataLoader(train, batch_size=args.batch, num_workers=args.workers)
    val_loader = DataLoader(val.shard(world, rank), batch_size=args.batch)
    return train, train_loader, val_loader


@torch.no_grad()
def accuracy(net, loader):
    net.eval()
    s = torch.zeros(2)
    for x, y in loader:
        s += torch.tensor([(net(x).argmax(1) == y).sum().item(), len(y)])
    dist.all_reduce(s)
    net.train()
    return (s[0] / s[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--epochs", type=int, default=2)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    stream, train_loader, val_loader = build_loaders(args)
    model = DDP(nn.Sequential(nn.Linear(9, 24), nn.ReLU(), nn.Linear(24, 2)))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(args.epochs):
        stream.set_epoch(epoch)
        for x, y in train_loader:
            opt.zero_grad(set_to_none=True)
            F.cross_entropy(model(x), y).backward()
            opt.step()
        acc = accuracy(model.module, val_loader)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} acc {acc:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
