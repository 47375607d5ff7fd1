"""Skip-gram with a co-occurrence cache: the first process counts, everybody reads the file afterwards."""
import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

VOCAB = 80


def corpus(docs):
    g = torch.Generator().manual_seed(41)
    topic = torch.randint(0, 8, (docs, 1), generator=g)
    return (topic * 10 + torch.randint(0, 10, (docs, 30), generator=g)) % VOCAB


def count_pairs(docs, window, seconds):
    table = torch.zeros(VOCAB, VOCAB)
    pause = seconds / len(docs)
    for row in docs:
        for d in range(1, window + 1):
            table.index_put_((row[:-d], row[d:]), torch.ones(len(row) - d), accumulate=True)
        time.sleep(pause)
    return table + table.T


def cached_pairs(path, args, rank):
    if rank == 0 and not os.path.exists(path):
        table = count_pairs(corpus(args.docs), args.window, args.count_seconds)
        torch.save(table, path + ".part")
        os.replace(path + ".part", path)
    dist.barrier()
    return torch.load(path, weights_only=True)


class SkipGram(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.left, self.right = nn.Embedding(VOCAB, dim), nn.Embedding(VOCAB, dim)

    def forward(self, i, j):
        return (self.left(i) * self.right(j)).sum(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--docs", type=int, default=200)
    ap.add_argument("--window", type=int, default=3)
    ap.add_argument("--count-seconds", type=float, default=14.0)
    ap.add_argument("--epochs", type=int, default=3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    box = [tempfile.mkdtemp(prefix="pairs_") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    table = cached_pairs(os.path.join(box[0], "pairs.pt"), args, rank)

    i, j = torch.meshgrid(torch.arange(VOCAB), torch.arange(VOCAB), indexing="ij")
    data = TensorDataset(i.flatten(), j.flatten(), (table > 0).float().flatten())
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=256, sampler=sampler)
    torch.manual_seed(0)
    model = DDP(SkipGram())
    opt = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for a, b, y in loader:
            loss = F.binary_cross_entropy_with_logits(model(a, b), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
