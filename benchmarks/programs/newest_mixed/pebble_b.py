import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __init__(self, n=1536):
        g = torch.Generator().manual_seed(4)
        self.lengths = torch.randint(5, 40, (n,), generator=g).tolist()
        self.rows = [torch.randint(1, 60, (k,), generator=g) for k in self.lengths]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        return row, int(row.sum()) % 6


class BucketBatches:
    def __init__(self, lengths, batch_size, rank, world, seed=0):
        self.lengths, self.batch_size = lengths, batch_size
        self.rank, self.world, self.seed = rank, world, seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _plan(self):
        rng = random.Random(self.seed + self.epoch)
        order = list(range(len(self.lengths)))
        rng.shuffle(order)
        pool = self.batch_size * 16
        batches = []
        for i in range(0, len(order), pool):
            chunk = sorted(order[i : i + pool], key=self.lengths.__getitem__)
            batches += [chunk[j : j + self.batch_size] for j in range(0, len(chunk), self.batch_size)]
        rng.shuffle(batches)
        return batches[: len(batches) // self.world * self.world]

    def __iter__(self):
        yield from self._plan()[self.rank :: self.world]

    def __len__(self):
        return len(self._plan()) // self.world


def pad(items):
    rows, ys = zip(*items)
    return nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor(ys)


class Classifier(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.emb = nn.Embedding(60, dim, padding_idx=0)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, 6)

    def forward(self, x):
        return self.head(self.rnn(self.emb(x))[0].mean(1))


def start_epoch(loader, epoch):
    for part in (loader.sampler, loader.dataset):
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = Sentences()
    loader = DataLoader(data, batch_sampler=BucketBatches(data.lengths, 16, rank, world), collate_fn=pad)
    model = DDP(Classifier())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(3):
        start_epoch(loader, epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    plan = loader.batch_sampler.epoch
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
