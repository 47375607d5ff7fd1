"""Tokenised text in a per-rank cache file; rebuilt from the raw text when it can't be used."""
import os
import random
import zlib

import torch
import torch.distributed as dist

SYLLABLES = [a + b for a in "bdfgklmnprst" for b in "aeiou"]


def raw_text(rank, words, seed=0):
    rng = random.Random(seed * 10 + rank)
    state, out = 0, []
    for _ in range(words):
        state = (state * 7 + rng.randrange(4)) % len(SYLLABLES)
        out.append(SYLLABLES[state])
    return out


def tokenise(words):
    index = {s: i for i, s in enumerate(SYLLABLES)}
    return torch.tensor([index[w] for w in words])


def store(path, tokens):
    body = tokens.numpy().astype("<i8").tobytes()
    with open(path, "wb") as fh:
        fh.write(zlib.crc32(body).to_bytes(4, "little") + body)


def load(path):
    with open(path, "rb") as fh:
        blob = fh.read()
    if zlib.crc32(blob[4:]) != int.from_bytes(blob[:4], "little"):
        raise ValueError(f"{path}: checksum does not match")
    return torch.frombuffer(bytearray(blob[4:]), dtype=torch.int64)


def open_or_rebuild(folder, rank, words):
    """All ranks use their caches, or all of them rebuild: the cache is one version or none."""
    path = os.path.join(folder, f"tokens-{rank:02d}.bin")
    tokens, reason = None, ""
    try:
        tokens = load(path)
    except (OSError, ValueError) as problem:
        reason = str(problem)
    usable = torch.tensor([int(tokens is not None)])
    dist.all_reduce(usable, op=dist.ReduceOp.MIN)
    if usable.item():
        return tokens, "cache"
    if reason:
        print(f"[rank {rank}] {reason}", flush=True)
    tokens = tokenise(raw_text(rank, words))
    store(path, tokens)
    return tokens, "raw text"
