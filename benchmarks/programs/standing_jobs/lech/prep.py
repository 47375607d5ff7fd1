"""Corpus preparation with an on-disk cache shared by all processes of a node."""
import hashlib
import json
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

log = logging.getLogger("prep")

WORDS = ("river stone bank flood bridge mill reed trout ferry delta source "
         "weir lock barge heron willow gravel rapids ford spring").split()


@dataclass
class PrepConfig:
    n_docs: int = 1200
    seq_len: int = 24
    vocab_size: int = 64
    shuffle_seed: int = 0
    lowercase: bool = True
    version: int = 3


def fingerprint(cfg: PrepConfig) -> str:
    blob = json.dumps(asdict(cfg), sort_keys=True).encode()
    return hashlib.sha1(blob).hexdigest()[:12]


def _raw_documents(n_docs):
    gen = np.random.default_rng(1234)
    for _ in range(n_docs):
        n = int(gen.integers(12, 40))
        start = int(gen.integers(0, len(WORDS)))
        step = int(gen.integers(1, 4))
        yield " ".join(WORDS[(start + step * i) % len(WORDS)].capitalize() for i in range(n))


def _encode(text, cfg):
    if cfg.lowercase:
        text = text.lower()
    ids = [2 + (sum(map(ord, w)) * 7 + len(w)) % (cfg.vocab_size - 2) for w in text.split()]
    ids = ids[: cfg.seq_len]
    return ids + [0] * (cfg.seq_len - len(ids))


def _build(cfg: PrepConfig, path: Path):
    path.mkdir(parents=True, exist_ok=True)
    rows = np.asarray([_encode(t, cfg) for t in _raw_documents(cfg.n_docs)], dtype=np.int64)
    order = np.random.default_rng(cfg.shuffle_seed).permutation(len(rows))
    rows = rows[order]
    n_val = len(rows) // 10
    tmp = path / "rows.tmp.npy"
    np.save(tmp, rows[n_val:])
    tmp.rename(path / "train.npy")
    np.save(path / "val.npy", rows[:n_val])
    (path / "config.json").write_text(json.dumps(asdict(cfg), indent=2))
    (path / "READY").write_text(fingerprint(cfg))


def load_corpus(cfg: PrepConfig, cache_root: Path, builder: bool, poll_s: float = 0.25):
    """One process tokenizes, the rest wait for its marker and map the result."""
    path = cache_root / f"tok-{fingerprint(cfg)}"
    marker = path / "READY"
    if builder:
        if marker.exists():
            log.info("reusing %s", path)
        else:
            log.info("tokenizing into %s", path)
            _build(cfg, path)
    else:
        waited = 0.0
        while not marker.exists():
            time.sleep(poll_s)
            waited += poll_s
            if waited % 60 == 0:
                log.info("still waiting for %s (%.0f s)", path.name, waited)
    train = np.load(path / "train.npy", mmap_mode="r")
    val = np.load(path / "val.npy", mmap_mode="r")
    return train, val
