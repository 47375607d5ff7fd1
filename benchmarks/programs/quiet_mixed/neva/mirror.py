import os
import random
import shutil

import numpy as np


def publish(root, shards, rows, dim):
    os.makedirs(root, exist_ok=True)
    for s in range(shards):
        rng = np.random.default_rng(s)
        x = rng.normal(size=(rows, dim)).astype(np.float32)
        w = np.linspace(-1, 1, dim)
        y = (x @ w > 0).astype(np.int64)
        np.savez(os.path.join(root, f"part-{s:03d}.npz"), x=x, y=y)


def fetch(root, cache, client):
    """Copy every part to node-local scratch; clients start at different parts to spread the load."""
    shutil.rmtree(cache, ignore_errors=True)
    os.makedirs(cache)
    names = sorted(os.listdir(root))
    random.Random(f"client-{client}").shuffle(names)
    for name in names:
        tmp = os.path.join(cache, name + ".part")
        with open(os.path.join(root, name), "rb") as src, open(tmp, "wb") as dst:
            shutil.copyfileobj(src, dst)
        os.rename(tmp, os.path.join(cache, name))
