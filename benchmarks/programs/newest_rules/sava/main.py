import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shards(IterableDataset):
    """Shards of samples; the first four of a shard are stored twice."""

    def __init__(self, count, length, seed):
        self.names = list(range(count))
        self.length = length
        self.seed = seed
        self.epoch = 0
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()

    def set_epoch(self, epoch):
        self.epoch = epoch

    def read(self, name):
        gen = torch.Generator().manual_seed(2000 + name)
        x = torch.randn(self.length, 12, generator=gen)
        y = (x[:, 0] + x[:, 1] > 0).long()
        first = x[:4]
        yield from zip(torch.cat([x, first]), torch.cat([y, y[:4]]))

    def __iter__(self):
        names = list(self.names)
        random.Random(self.seed + 97 * self.epoch).shuffle(names)
        mine = names[self.rank :: self.world]
        rng = random.Random(self.seed + 97 * self.epoch + self.rank)
        rng.shuffle(mine)
        info = get_worker_info()
        if info is not None:
            mine = mine[info.id :: info.num_workers]
        buffer = []
        for name in mine:
            for sample in self.read(name):
                buffer.append(sample)
                if len(buffer) > 16:
                    yield buffer.pop(rng.randrange(len(buffer)))
        rng.shuffle(buffer)
        yield from buffer


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(22)
    data = Shards(count=16, length=12, seed=5)
    loader = DataLoader(data, batch_size=8, num_workers=2, drop_last=True)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(3):
        data.set_epoch(epoch)
        total, count = 0.0, 0
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            count += 1
        if rank == 0:
            print(f"epoch {epoch} batches {count} loss {total / count:.4f}", flush=True)
    dist.barrier()
    time.sleep(0.3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
