"""Builds a word table next to the raw text (guarded by a file lock), then trains a tagger."""

import argparse
import hashlib
import json
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from filelock import FileLock
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def write_raw(path):
    gen = torch.Generator().manual_seed(17)
    with open(path, "w") as out:
        for row in torch.randint(0, 200, (400, 8), generator=gen).tolist():
            out.write(" ".join(f"w{n}" for n in row) + "\n")


def checksum(path):
    digest = hashlib.sha256()
    with open(path, "rb") as raw:
        while block := raw.read(1024):
            digest.update(block)
            time.sleep(0.2)
    return digest.hexdigest()


def build_words(raw, table):
    with open(raw) as text:
        words = sorted({word for line in text for word in line.split()})
    with open(table, "w") as out:
        json.dump({word: i for i, word in enumerate(words)}, out)


def prepare(folder):
    raw, table = os.path.join(folder, "raw.txt"), os.path.join(folder, "words.json")
    if dist.get_rank() != 0:
        checksum(raw)
    with FileLock(table + ".lock"):
        if not os.path.exists(table):
            build_words(raw, table)
        dist.barrier()
    with open(table) as source:
        return raw, json.load(source)


def encode(raw, words):
    with open(raw) as text:
        rows = torch.tensor([[words[w] for w in line.split()] for line in text])
    return TensorDataset(rows, (rows.sum(1) % 3))


class Tagger(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.embed = nn.EmbeddingBag(count, 24)
        self.out = nn.Linear(24, 3)

    def forward(self, rows):
        return self.out(self.embed(rows))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)

    where = [None]
    if rank == 0:
        where[0] = tempfile.mkdtemp(prefix="words_")
        write_raw(os.path.join(where[0], "raw.txt"))
    dist.broadcast_object_list(where, src=0)
    raw, words = prepare(where[0])

    data = encode(raw, words)
    sampler = DistributedSampler(data, shuffle=True, seed=2)
    loader = DataLoader(data, batch_size=20, sampler=sampler)
    model = DDP(Tagger(len(words)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for rows, label in loader:
            time.sleep(0.25)
            loss = loss_fn(model(rows), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
