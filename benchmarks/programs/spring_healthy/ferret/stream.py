import json
import os

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info


def write_shards(root, n_shards, seed):
    """Log files of very different length, as they come from the collectors."""
    rng = np.random.default_rng(seed)
    w = np.random.default_rng(0).normal(size=(24, 5))
    uid, sizes = 0, []
    for s in range(n_shards):
        n = int(rng.integers(60, 900))
        x = rng.normal(size=(n, 24)).astype(np.float32)
        y = (np.tanh(x) @ w + 0.4 * rng.normal(size=(n, 5))).argmax(1)
        np.savez(os.path.join(root, f"part-{s:03d}.npz"), x=x, y=y, uid=np.arange(uid, uid + n))
        uid += n
        sizes.append(n)
    with open(os.path.join(root, "index.json"), "w") as f:
        json.dump({"sizes": sizes, "records": uid}, f)


class ShardStream(IterableDataset):
    """Endless stream. Does its own split: shards go round the readers, a reader being one
    loader worker of one rank. A marker row closes every pass of a reader."""

    def __init__(self, root, rank, world, seed, chunk=64):
        self.root, self.rank, self.world, self.seed, self.chunk = root, rank, world, seed, chunk
        with open(os.path.join(root, "index.json")) as f:
            self.sizes = json.load(f)["sizes"]

    def _pass(self, number, reader, readers):
        order = np.random.default_rng(self.seed + number).permutation(len(self.sizes))
        for s in order[reader::readers]:
            with np.load(os.path.join(self.root, f"part-{s:03d}.npz")) as z:
                x, y, uid = z["x"], z["y"], z["uid"]
            mix = np.random.default_rng([self.seed, number, int(s)]).permutation(len(uid))
            for at in range(0, len(mix), self.chunk):
                k = mix[at:at + self.chunk]
                yield torch.from_numpy(x[k]), torch.from_numpy(y[k]), torch.from_numpy(uid[k])

    def __iter__(self):
        info = get_worker_info()
        wid, n = (info.id, info.num_workers) if info else (0, 1)
        number = 0
        while True:
            yield from self._pass(number, self.rank * n + wid, self.world * n)
            yield None
            number += 1


class PassReader:
    """Cuts the endless stream at the markers. None when this rank has no more rows in the pass."""

    def __init__(self, loader):
        self.it, self.workers = iter(loader), max(1, loader.num_workers)
        self.early = [[] for _ in range(self.workers)]
        self.turn = 0

    def rows(self):
        open_workers = set(range(self.workers))
        for w in range(self.workers):
            while self.early[w]:
                item = self.early[w].pop(0)
                if item is None:
                    open_workers.discard(w)
                    break
                yield item
        while open_workers:
            w = self.turn
            item = next(self.it)
            self.turn = (self.turn + 1) % self.workers
            if w not in open_workers:
                self.early[w].append(item)
            elif item is None:
                open_workers.discard(w)
            else:
                yield item
