"""Labelled crops with a shared vocabulary that a background thread keeps fresh."""
import argparse
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Vocabulary:
    """Word ids; refreshed from the annotation files while training goes on."""

    def __init__(self, words):
        self._lock = threading.Lock()
        self._ids = {word: number for number, word in enumerate(words)}

    def id(self, word):
        with self._lock:
            return self._ids[word]

    def merge(self, files, seconds_per_file):
        with self._lock:
            for name in files:
                time.sleep(seconds_per_file)
                self._ids.setdefault(name, len(self._ids))


class Refresher(threading.Thread):
    def __init__(self, vocabulary, files):
        super().__init__(daemon=True)
        self.vocabulary, self.files = vocabulary, files
        self.ready = threading.Event()

    def run(self):
        self.ready.set()
        self.vocabulary.merge(self.files, 0.02)


class Crops(Dataset):
    WORDS = ("oak", "ash", "elm", "yew")

    def __init__(self, vocabulary, count):
        self.vocabulary, self.count = vocabulary, count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        image = torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(i))
        return image.flatten(), self.vocabulary.id(self.WORDS[i % 4])


def annotation_files(rank, world):
    """What is new since the last run; the listing is dealt out over the ranks."""
    listing = [f"part{n:03d}" for n in range(61)]
    return [name for n, name in enumerate(listing) if n % world == rank][: 30 if rank == world - 1 else 2]


def epoch(model, opt, loader):
    seen = torch.zeros(1)
    for images, words in loader:
        opt.zero_grad()
        nn.functional.cross_entropy(model(images), words).backward()
        opt.step()
        seen += len(words)
    dist.all_reduce(seen)
    return int(seen)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=160)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(108, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    vocabulary = Vocabulary(Crops.WORDS)
    data = Crops(vocabulary, args.samples)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=args.workers, multiprocessing_context="fork")
    refresher = Refresher(vocabulary, annotation_files(rank, world))
    refresher.start()
    refresher.ready.wait()
    time.sleep(0.2)
    for number in range(args.epochs):
        sampler.set_epoch(number)
        seen = epoch(model, opt, loader)
        if rank == 0:
            print(f"epoch {number}: {seen} crops", flush=True)
    refresher.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
