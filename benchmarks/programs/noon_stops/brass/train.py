import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


class ShardStream(IterableDataset):
    """Whole shards go to processes; shards hold different numbers of sessions."""

    def __init__(self, rank, world, shards=11, items=400, length=20):
        self.mine = range(rank, shards, world)
        self.items, self.length = items, length
        self.epoch = 0

    def __iter__(self):
        for shard in self.mine:
            g = torch.Generator().manual_seed(1000 * self.epoch + shard)
            size = 320 + 64 * (shard % 4)
            start = torch.randint(0, self.items, (size, 1), generator=g)
            stride = torch.randint(1, 6, (size, 1), generator=g)
            yield from (start + stride * torch.arange(self.length + 1)) % self.items


class SessionRanker(nn.Module):
    def __init__(self, items=400, dim=96):
        super().__init__()
        self.item = nn.Embedding(items, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, items)

    def forward(self, seq):
        return self.out(self.rnn(self.item(seq))[0])


def train_epoch(model, opt, loader):
    seen, total = 0, 0.0
    with Join([model]):
        for seq in loader:
            opt.zero_grad(set_to_none=True)
            logits = model(seq[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), seq[:, 1:].flatten())
            loss.backward()
            opt.step()
            seen += 1
            total += loss.item()
    return seen, total


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--batch-size", type=int, default=64)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    data = ShardStream(rank, world)
    loader = DataLoader(data, args.batch_size)
    torch.manual_seed(0)
    model = DDP(SessionRanker())
    opt = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for epoch in range(args.epochs):
        data.epoch = epoch
        seen, total = train_epoch(model, opt, loader)
        stats = torch.tensor([seen, total], dtype=torch.float64)
        dist.all_reduce(stats)
        if rank == 0:
            print(f"epoch {epoch} batches {int(stats[0])} loss {stats[1].item() / stats[0].item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
