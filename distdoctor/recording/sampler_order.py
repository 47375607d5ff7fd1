"""The order in which torch's own samplers hand out samples, worked out again from what a pass says of its sampler.

Who knows seed, epoch and shares need not be told the draws: a bundle leaves out those that are what is worked out here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.recording.trace.layout import BLOCK_INDICES, BlockKind, PassFlag
from distdoctor.recording.trace.reader import Rows

Indices = NDArray[np.uint32]
MOST_DRAWN = 1 << 17  # by all replicas together: worked out in 50 ms
_NO_ORDER = PassFlag.HASHED | PassFlag.ITERABLE | PassFlag.REPLACEMENT | PassFlag.UNTRANSLATED | PassFlag.EVENED


def draws_of(row: Any, first: int, end: int) -> Indices | None:
    """The draws `first` to `end` of a pass (a row of `layout.PASS`), were its sampler torch's DistributedSampler, or its
    SequentialSampler over all that the loader was given; None where nothing can be told. Whether it was, only the draws tell."""
    if not is_foretold(row, end):
        return None
    length, replicas, here = int(row["dataset_length"]), _replicas(row), max(0, int(row["sampler_rank"]))
    places = (here + replicas * np.arange(first, end, dtype=np.int64)) % length
    if not int(row["flags"]) & PassFlag.SHUFFLE:
        return places.astype(np.uint32)
    seed = int(row["seed"]) + max(0, int(row["epoch_told"]))
    return shuffled(length, seed, _rounded(min(length, replicas * end)))[places]


def is_foretold(row: Any, end: int) -> bool:
    """Whether a sampler is known that may have handed out a pass up to this draw."""
    flags, length, replicas = PassFlag(int(row["flags"])), int(row["dataset_length"]), _replicas(row)
    if flags & _NO_ORDER or not 0 < length < 1 << 32 or (flags & PassFlag.SHUFFLE and int(row["seed"]) < 0):
        return False
    share = _share(length, replicas, drop_last=bool(flags & PassFlag.DROP_LAST))
    return int(row["sampler_rank"]) < replicas and end <= share and replicas * end <= MOST_DRAWN


def _replicas(row: Any) -> int:
    return max(1, int(row["num_replicas"]))


def _share(length: int, replicas: int, *, drop_last: bool) -> int:
    """How many draws one replica makes."""
    return length // replicas if drop_last and length % replicas else math.ceil(length / replicas)


def _rounded(draws: int) -> int:
    """The next power of two: ranks that are a few draws apart share one order."""
    return 1 << max(0, draws - 1).bit_length()


@lru_cache(maxsize=64)
def shuffled(length: int, seed: int, draws: int) -> Indices:
    """How `torch.randperm(length)` begins after `manual_seed(seed)` on the CPU: at least so many of its numbers.

    torch draws 32 random bits a number, modulo what is left, and swaps (2.15, aten/src/ATen/native/TensorFactories.cpp); its
    Mersenne Twister is numpy's, seeded alike.
    """
    draws = min(draws, length - 1)
    random = np.random.RandomState(seed & 0xFFFFFFFF).randint(0, 1 << 32, draws, np.uint32).astype(np.int64)
    swapped = (np.arange(draws) + random % (length - np.arange(draws))).tolist()
    moved: dict[int, int] = {}  # what now lies at a place that was swapped, the others hold their own number
    found = []
    for place, other in enumerate(swapped):
        mine = moved.pop(place, place)
        found.append(moved.get(other, other) if other != place else mine)
        moved[other] = mine
    found += [moved.get(place, place) for place in range(draws, min(draws + 1, length))]
    return np.array(found, np.uint32)


def left_out(passes: Rows, blocks: Rows) -> tuple[Rows, list[int]]:
    """The blocks without what is no draw, and without the draws of those blocks that need not be told; the places of these."""
    found, foretold = blocks.copy(), []
    for place, block, row, first, end in _raw_blocks(passes, blocks):
        found["indices"][place, end - first :] = 0
        draws = draws_of(row, first, end)
        if draws is not None and end > first and np.array_equal(block["indices"][: end - first], draws):
            found["indices"][place] = 0
            foretold.append(place)
    return found, foretold


def put_back(passes: Rows, blocks: Rows, foretold: Collection[int]) -> None:
    """The draws that `left_out` took away."""
    wanted = set(foretold)
    for place, block, row, first, end in _raw_blocks(passes, blocks):
        draws = draws_of(row, first, end) if place in wanted else None
        if draws is not None:
            block["indices"][: end - first] = draws


def require_foretold(passes: Rows, blocks: Rows, foretold: Collection[int]) -> None:
    """Whether `put_back` knows these draws.

    ValueError: `left_out` cannot have taken them.
    """
    wanted = set(foretold)
    for place, _, row, first, end in _raw_blocks(passes, blocks):
        if place in wanted and not is_foretold(row, end):
            raise ValueError(f"nothing foretells the draws {first} to {end} of a pass")


def _raw_blocks(passes: Rows, blocks: Rows) -> Iterator[tuple[int, Any, Any, int, int]]:
    """Of each block that holds draws as they came: its place, the block, its pass, and which draws it holds."""
    by_number = {int(row["seq"]): row for row in passes}
    for place, block in enumerate(blocks):
        row = by_number.get(int(block["pass_seq"]))
        if row is not None and block["kind"] == BlockKind.RAW:
            first = int(block["block_number"]) * BLOCK_INDICES
            yield place, block, row, first, min(max(int(row["drawn"]), first), first + BLOCK_INDICES)
