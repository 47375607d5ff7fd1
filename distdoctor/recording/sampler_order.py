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
    flags, length = PassFlag(int(row["flags"])), int(row["dataset_length"])
    replicas, here, seed = max(1, int(row["num_replicas"])), max(0, int(row["sampler_rank"])), int(row["seed"])
    share = _share(length, replicas, drop_last=bool(flags & PassFlag.DROP_LAST))
    if flags & _NO_ORDER or not 0 < length < 1 << 32 or here >= replicas or end > share or replicas * end > MOST_DRAWN:
        return None
    places = (here + replicas * np.arange(first, end, dtype=np.int64)) % length
    if not flags & PassFlag.SHUFFLE:
        return places.astype(np.uint32)
    if seed < 0:
        return None
    return shuffled(length, seed + max(0, int(row["epoch_told"])), _rounded(min(length, replicas * end)))[places]


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
    """The draws that `left_out` took away.

    ValueError: it cannot have taken these.
    """
    wanted = set(foretold)
    for place, block, row, first, end in _raw_blocks(passes, blocks):
        if place in wanted:
            draws = draws_of(row, first, end)
            if draws is None:
                raise ValueError(f"nothing foretells the draws {first} to {end} of a pass")
            block["indices"][: end - first] = draws


def _raw_blocks(passes: Rows, blocks: Rows) -> Iterator[tuple[int, Any, Any, int, int]]:
    """Of each block that holds draws as they came: its place, the block, its pass, and which draws it holds."""
    by_number = {int(row["seq"]): row for row in passes}
    for place, block in enumerate(blocks):
        row = by_number.get(int(block["pass_seq"]))
        if row is not None and block["kind"] == BlockKind.RAW:
            first = int(block["block_number"]) * BLOCK_INDICES
            yield place, block, row, first, min(max(int(row["drawn"]), first), first + BLOCK_INDICES)
