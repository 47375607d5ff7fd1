import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler


class Sentences(Dataset):
    def __init__(self, n=400, vocab=80):
        g = torch.Generator().manual_seed(41)
        lengths = torch.randint(6, 14, (n,), generator=g).tolist()
        self.rows = [torch.randint(1, vocab, (k,), generator=g) for k in lengths]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        return row, int(row.sum()) % 3


class BucketBatchSampler(Sampler):
    def __init__(self, sampler, lengths, batch_size, window=80):
        self.sampler = sampler
        self.lengths = lengths
        self.batch_size = batch_size
        self.window = window

    def __len__(self):
        return (len(self.sampler) + self.batch_size - 1) // self.batch_size

    def __iter__(self):
        order = list(self.sampler)
        for start in range(0, len(order), self.window):
            chunk = sorted(order[start : start + self.window], key=self.lengths.__getitem__)
            for k in range(0, len(chunk), self.batch_size):
                yield chunk[k : k + self.batch_size]


def collate(items):
    rows, labels = zip(*items)
    return pad_sequence(rows, batch_first=True), torch.tensor(labels)


class Classifier(nn.Module):
    def __init__(self, vocab=80, dim=32):
        super().__init__()
        self.embed = nn.EmbeddingBag(vocab, dim, mode="mean", padding_idx=0)
        self.head = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, ids):
        return self.head(self.embed(ids))


def train(model, opt, loader):
    total, count = 0.0, 0
    for ids, labels in loader:
        loss = F.cross_entropy(model(ids), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total, count = total + loss.detach(), count + 1
    return total / count


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch-size", type=int, default=20)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    data = Sentences()
    shards = DistributedSampler(data, world, rank, shuffle=True, seed=10)
    batches = BucketBatchSampler(shards, [len(r) for r in data.rows], args.batch_size)
    loader = DataLoader(data, batch_sampler=batches, collate_fn=collate)
    model = DDP(Classifier())
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        if hasattr(loader.batch_sampler.sampler, "set_epoch"):
            loader.batch_sampler.sampler.set_epoch(epoch)
        mean = train(model, opt, loader)
        if rank == 0:
            print(f"epoch {epoch} loss {mean.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
