"""Length-bucketed training of a recurrent encoder."""
import argparse
import random
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler


class Sequences(Dataset):
    def __init__(self, n=384, low=8, high=160, seed=55):
        g = torch.Generator().manual_seed(seed)
        self.rows = [torch.randint(1, 30, (int(k),), generator=g)
                     for k in torch.randint(low, high, (n,), generator=g)]
        self.lengths = [len(r) for r in self.rows]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        r = self.rows[i]
        return r, int((r == r[0]).sum() > 1 + len(r) // 40)


class BucketSampler(Sampler):
    """Batches of similar length; the order of batches is shuffled each epoch."""

    def __init__(self, lengths, batch_size, rank, world, seed=0):
        self.lengths, self.bs = lengths, batch_size
        self.rank, self.world, self.seed, self.epoch = rank, world, seed, 0
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        per = len(order) // world
        self.mine = order[rank::world][:per]

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.mine) // self.bs

    def __iter__(self):
        batches = [self.mine[i * self.bs:(i + 1) * self.bs] for i in range(len(self))]
        random.Random(self.seed + self.epoch).shuffle(batches)
        return iter(batches)


def collate(rows):
    ids = nn.utils.rnn.pad_sequence([r for r, _ in rows], batch_first=True)
    return ids, torch.tensor([c for _, c in rows])


class Encoder(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Embedding(30, d, padding_idx=0)
        self.cell = nn.GRUCell(d, d)
        self.out = nn.Linear(d, 2)

    def forward(self, ids):
        e = self.emb(ids)
        h = e.new_zeros(len(ids), e.shape[-1])
        for t in range(ids.shape[1]):
            h = torch.where((ids[:, t] > 0)[:, None], self.cell(e[:, t], h), h)
        return self.out(h)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=16)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    data = Sequences()
    sampler = BucketSampler(data.lengths, args.batch_size, rank, world)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate)
    model = DDP(Encoder())
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        start, tokens = time.perf_counter(), 0
        for ids, y in loader:
            loss = F.cross_entropy(model(ids), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            tokens += ids.numel()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} {time.perf_counter() - start:.2f}s", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
