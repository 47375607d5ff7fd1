"""Stages the shards of a data set onto the node's scratch disk before training starts."""
import os
import random
import shutil
import tempfile

import torch


def publish(root, n_shards=8, rows=36):
    """What the remote bucket holds."""
    os.makedirs(root, exist_ok=True)
    for s in range(n_shards):
        g = torch.Generator().manual_seed(s)
        x = torch.randn(rows, 9, generator=g)
        key = torch.arange(rows) + s * rows
        torch.save({"x": x, "y": x[:, :3].sum(1, keepdim=True).sin(), "key": key}, os.path.join(root, f"shard_{s:04d}.pt"))


def stage(bucket, node):
    """Downloads go out in shuffled order, so that the nodes don't all hit the same object at once."""
    scratch = tempfile.mkdtemp(prefix=f"scratch{node}_")
    names = os.listdir(bucket)
    random.Random(1000 + node).shuffle(names)
    for name in names:
        shutil.copyfile(os.path.join(bucket, name), os.path.join(scratch, name))
    return scratch


def shard_files(scratch):
    paths = [os.path.join(scratch, n) for n in os.listdir(scratch) if n.endswith(".pt")]
    return sorted(paths, key=os.path.getmtime)
