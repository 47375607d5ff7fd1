import math
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler


class Utterances(Dataset):
    def __init__(self, n=240):
        rng = random.Random(4)
        g = torch.Generator().manual_seed(4)
        self.items = [torch.randn(rng.randint(5, 40), 6, generator=g) for _ in range(n)]
        self.lengths = [len(x) for x in self.items]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        x = self.items[i]
        return x, (x.mean(0)[0] > 0).long()


class DistributedBucketBatchSampler(Sampler):
    def __init__(self, lengths, batch_size, seed=0, buckets=4):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.batch_size, self.seed, self.epoch = batch_size, seed, 0
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        size = math.ceil(len(order) / buckets)
        self.buckets = [order[i:i + size] for i in range(0, len(order), size)]

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _batches(self):
        rng = random.Random(self.seed + self.epoch)
        step = self.batch_size * self.world
        out = []
        for bucket in self.buckets:
            bucket = list(bucket)
            rng.shuffle(bucket)
            out += [bucket[i:i + step] for i in range(0, len(bucket) - step + 1, step)]
        rng.shuffle(out)
        return out

    def __iter__(self):
        for group in self._batches():
            yield group[self.rank::self.world]

    def __len__(self):
        return sum(len(b) // (self.batch_size * self.world) for b in self.buckets)


def pad(batch):
    xs, ys = zip(*batch)
    return nn.utils.rnn.pad_sequence(xs, batch_first=True), torch.tensor([len(x) for x in xs]), torch.stack(ys)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(6, 20)
        self.out = nn.Linear(20, 2)

    def forward(self, x, lengths):
        mask = (torch.arange(x.shape[1])[None] < lengths[:, None]).unsqueeze(-1)
        h = (torch.tanh(self.proj(x)) * mask).sum(1) / lengths[:, None]
        return self.out(h)


def fit(model, loader, optimizer, epochs):
    for epoch in range(epochs):
        if hasattr(loader.batch_sampler, "set_epoch"):
            loader.batch_sampler.set_epoch(epoch)
        total = torch.zeros(())
        for x, lengths, y in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(x, lengths), y)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {total.item() / len(loader) / dist.get_world_size():.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(6)
    data = Utterances()
    loader = DataLoader(data, batch_sampler=DistributedBucketBatchSampler(data.lengths, 6), collate_fn=pad)
    model = DDP(Encoder())
    fit(model, loader, torch.optim.Adam(model.parameters(), lr=5e-3), epochs=3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
