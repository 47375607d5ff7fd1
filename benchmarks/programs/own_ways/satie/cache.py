"""Token cache that is built once and shared by all local processes."""
import hashlib
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch.distributed as dist


def coordination_store():
    return dist.PrefixStore("token_cache", dist.distributed_c10d._get_default_store())


def fingerprint(text, vocab):
    return hashlib.sha1(("".join(vocab) + "|" + text).encode()).hexdigest()[:12]


def encode(text, vocab):
    lookup = {c: i for i, c in enumerate(vocab)}
    return np.array([lookup[c] for c in text], dtype=np.uint16)


class TokenCache:
    def __init__(self, directory: Path, rank: int):
        self.directory, self.rank = Path(directory), rank
        self.store = coordination_store()

    def build(self, text, vocab, stage):
        path = self.directory / f"tokens_{fingerprint(text, vocab)}.bin"
        if self.rank == 0:
            if not path.exists():
                tmp = path.with_suffix(".tmp")
                encode(text, vocab).tofile(tmp)
                tmp.rename(path)
            self.store.set(f"ready/{stage}", path.name)
        else:
            self.store.wait([f"ready/{stage}"], timedelta(minutes=30))
            path = self.directory / self.store.get(f"ready/{stage}").decode()
        return np.memmap(path, dtype=np.uint16, mode="r")
