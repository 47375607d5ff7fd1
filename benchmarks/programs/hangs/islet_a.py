"""Embeds a folder of documents, sharded by file, and averages the embeddings."""
import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn


def write_corpus(folder, count):
    """Small stand-in corpus; every process writes the same bytes."""
    folder.mkdir(exist_ok=True, parents=True)
    for number in range(count):
        path = folder / f"doc{number:02d}.txt"
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(" ".join(f"w{(number * 7 + k) % 50}" for k in range(20 + number)))
        partial.rename(path)


class Shard:
    def __init__(self, folder, rank, world, min_bytes):
        files = sorted(p for p in folder.glob("*.txt") if p.stat().st_size >= min_bytes)
        self.files = files[rank::world]

    def __bool__(self):
        return bool(self.files)

    def documents(self):
        for path in self.files:
            yield [int(word[1:]) for word in path.read_text().split()]


class Embedder(nn.Module):
    def __init__(self, words=50, width=16):
        super().__init__()
        torch.manual_seed(9)
        self.table = nn.EmbeddingBag(words, width, mode="mean")
        self.out = nn.Linear(width, width)

    def forward(self, ids):
        return torch.tanh(self.out(self.table(torch.tensor([ids]))))[0]


class Job:
    def __init__(self, shard, width=16):
        self.shard, self.width = shard, width
        self.model = Embedder(width=width)

    def setup(self):
        dist.init_process_group("gloo")

    @torch.no_grad()
    def run(self):
        total, count = torch.zeros(self.width), torch.zeros(1)
        for ids in self.shard.documents():
            total += self.model(ids)
            count += 1
        dist.all_reduce(total)
        dist.all_reduce(count)
        return total / count

    def close(self):
        dist.barrier()
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--corpus", type=Path, default=Path("islet_corpus"))
    parser.add_argument("--documents", type=int, default=6)
    parser.add_argument("--min-bytes", type=int, default=88)
    args = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    write_corpus(args.corpus, args.documents)
    shard = Shard(args.corpus, rank, world, args.min_bytes)
    if not shard:
        print(f"[{rank}] no files for this rank", flush=True)
    job = Job(shard)
    job.setup()
    mean = job.run()
    if rank == 0:
        print(f"mean embedding norm {mean.norm():.4f}", flush=True)
    job.close()


if __name__ == "__main__":
    main()
