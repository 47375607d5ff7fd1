"""A small composable reader: shards -> lines -> records -> batches."""
import glob
import json
import os
import warnings

import torch
from torch.utils.data import IterableDataset


def list_shards(root):
    return sorted(glob.glob(os.path.join(root, "part-*.jsonl")))


def by_node(urls, rank, world):
    return urls[rank::world]


def lines(urls):
    for url in urls:
        with open(url) as f:
            for number, line in enumerate(f):
                yield f"{os.path.basename(url)}:{number}", line


def warn_and_continue(where, exc):
    warnings.warn(f"{where}: {type(exc).__name__}")
    return True


def reraise(where, exc):
    raise exc


def decode(source, handler=reraise):
    for where, line in source:
        try:
            rec = json.loads(line)
            sample = torch.tensor(rec["prompt"]), torch.tensor(rec["answer"])
        except (ValueError, KeyError) as exc:
            if handler(where, exc):
                continue
            break
        yield sample


def batched(source, size):
    buf = []
    for s in source:
        buf.append(s)
        if len(buf) == size:
            yield tuple(torch.stack(t) for t in zip(*buf))
            buf = []


class JsonlPipeline(IterableDataset):
    def __init__(self, root, rank, world, batch_size, handler):
        self.urls = by_node(list_shards(root), rank, world)
        self.batch_size, self.handler = batch_size, handler

    def __iter__(self):
        return batched(decode(lines(self.urls), self.handler), self.batch_size)
