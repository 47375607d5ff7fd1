import io
import json
import os
import random
import tarfile

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info


def pack(folder, shards, rows, seed=3):
    rng = np.random.default_rng(seed)
    for s in range(shards):
        with tarfile.open(os.path.join(folder, f"train-{s:05d}.tar"), "w") as tar:
            for r in range(rows):
                key = f"{s:05d}{r:04d}"
                label = int(rng.integers(0, 5))
                wave = np.sin(np.linspace(0, 3 + 2.5 * label, 48) + rng.uniform(0, 6.28))
                wave = (wave + 0.4 * rng.standard_normal(48)).astype(np.float32)
                for name, blob in ((f"{key}.npy", _npy(wave)), (f"{key}.json", json.dumps({"cls": label}).encode())):
                    info = tarfile.TarInfo(name)
                    info.size = len(blob)
                    tar.addfile(info, io.BytesIO(blob))


def _npy(array):
    buf = io.BytesIO()
    np.save(buf, array)
    return buf.getvalue()


def split_by_node(urls, rank, world):
    return urls[rank::world]


def split_by_worker(urls):
    info = get_worker_info()
    return urls[info.id::info.num_workers] if info else urls


def samples(path):
    with tarfile.open(path) as tar:
        group = {}
        for member in tar:
            key, ext = member.name.split(".", 1)
            if group and group["__key__"] != key:
                yield group
                group = {}
            group["__key__"] = key
            group[ext] = tar.extractfile(member).read()
        if group:
            yield group


def decode(sample):
    wave = np.load(io.BytesIO(sample["npy"]))
    return torch.from_numpy(wave)[None], json.loads(sample["json"])["cls"]


class TarStream(IterableDataset):
    def __init__(self, urls, rank, world, seed=0):
        self.urls, self.rank, self.world, self.seed = urls, rank, world, seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        urls = list(self.urls)
        random.Random(self.seed + self.epoch).shuffle(urls)
        urls = split_by_worker(split_by_node(urls, self.rank, self.world))
        for url in urls:
            rows = [decode(s) for s in samples(url)]
            random.Random(f"{url}{self.seed}{self.epoch}").shuffle(rows)
            yield from rows
