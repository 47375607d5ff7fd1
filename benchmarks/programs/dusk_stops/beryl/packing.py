import hashlib
import logging
import os
from dataclasses import dataclass

import torch
from torch.distributed.distributed_c10d import _get_default_store

log = logging.getLogger("pretrain.packing")


@dataclass(frozen=True)
class PackSpec:
    seq_len: int
    stride: int
    seed: int
    filters: tuple = ()

    @property
    def fingerprint(self):
        text = repr((self.seq_len, self.stride, self.seed, self.filters))
        return hashlib.sha1(text.encode()).hexdigest()[:12]


def read_documents(n, seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(n):
        length = int(torch.randint(60, 400, (1,), generator=g))
        start = int(torch.randint(0, 128, (1,), generator=g))
        step = int(torch.randint(1, 4, (1,), generator=g))
        yield (start + step * torch.arange(length)) % 128


def _dedup(docs):
    seen = set()
    for d in docs:
        k = (int(d[0]), int(d[1]), len(d))
        if k not in seen:
            seen.add(k)
            yield d


def _quality(docs):
    for d in docs:
        if len(d) >= 90:
            yield d


FILTERS = {"dedup": _dedup, "quality": _quality}


def pack(spec, n_docs):
    docs = read_documents(n_docs, spec.seed)
    for name in spec.filters:
        docs = FILTERS[name](docs)
    stream = torch.cat(list(docs))
    return stream.unfold(0, spec.seq_len + 1, spec.stride).contiguous()


def prepare_packed(folder, spec, rank, n_docs):
    """Rank 0 packs, everybody loads. Readiness is announced over the rendezvous store."""
    path = os.path.join(folder, f"packed-{spec.fingerprint}.pt")
    store = _get_default_store()
    key = f"packing/{spec.fingerprint}/ready"
    if rank == 0:
        if not os.path.exists(path):
            log.info("packing %s", spec)
            torch.save(pack(spec, n_docs), path + ".tmp")
            os.replace(path + ".tmp", path)
        store.set(key, "1")
    else:
        store.wait([key])
    return torch.load(path)
