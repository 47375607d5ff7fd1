"""A small tar-shard pipeline: list -> shuffle -> split by node -> split by worker -> samples."""
import io
import os
import random
import tarfile

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info


def write_shards(root, n_shards, per_shard, classes=16, size=16, seed=0):
    rng = np.random.default_rng(seed)
    proto = rng.normal(size=(classes, 3, size, size)).astype(np.float32)
    for s in range(n_shards):
        with tarfile.open(os.path.join(root, f"train-{s:05d}.tar"), "w") as tar:
            for k in range(per_shard):
                y = int(rng.integers(classes))
                x = proto[y] + rng.normal(0, 7.0, size=proto[y].shape).astype(np.float32)
                for ext, payload in (("npy", _npy(x.astype(np.float16))), ("cls", str(y).encode())):
                    info = tarfile.TarInfo(f"{s:05d}{k:05d}.{ext}")
                    info.size = len(payload)
                    tar.addfile(info, io.BytesIO(payload))


def _npy(a):
    b = io.BytesIO()
    np.save(b, a)
    return b.getvalue()


def tar_samples(urls):
    for url in urls:
        with tarfile.open(url) as tar:
            key, sample = None, {}
            for member in tar:
                stem, ext = member.name.split(".", 1)
                if stem != key and sample:
                    yield sample
                    sample = {}
                key = stem
                sample["__key__"] = stem
                sample[ext] = tar.extractfile(member).read()
            if sample:
                yield sample


def shuffled(samples, bufsize, rng):
    buf = []
    for s in samples:
        if len(buf) < bufsize:
            buf.append(s)
            continue
        i = rng.randrange(bufsize)
        buf[i], s = s, buf[i]
        yield s
    rng.shuffle(buf)
    yield from buf


def decode(sample):
    x = np.load(io.BytesIO(sample["npy"])).astype(np.float32)
    return torch.from_numpy(x), int(sample["cls"]), sample["__key__"]


class ShardDataset(IterableDataset):
    def __init__(self, urls, rank, world, seed, bufsize=128):
        self.urls = sorted(urls)
        self.rank, self.world = rank, world
        self.seed, self.bufsize = seed, bufsize
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def shard_list(self):
        urls = list(self.urls)
        random.Random(self.seed * 100003 + self.epoch).shuffle(urls)
        urls = urls[self.rank::self.world]
        info = get_worker_info()
        return urls if info is None else urls[info.id::info.num_workers]

    def __iter__(self):
        info = get_worker_info()
        rng = random.Random(f"{self.seed}/{self.epoch}/{self.rank}/{info.id if info else 0}")
        for s in shuffled(tar_samples(self.shard_list()), self.bufsize, rng):
            yield decode(s)
