"""The set of samples that one pass drew, one bit for each sample of the data set: 12.5 MB for 10^8 samples."""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distdoctor.recording.files import head_of
from distdoctor.recording.trace import bitmap_file

Bytes = NDArray[np.uint8]
Indices = NDArray[np.uint32]
CHUNK_BYTES = 1 << 20  # of each set, looked at together: memory does not grow with the data set
_ONES = np.array([value.bit_count() for value in range(256)], np.uint8)
_BIT = np.array([1 << bit for bit in range(8)], np.uint8)


@dataclass(frozen=True, eq=False)
class SampleBitmap:
    """Some of the samples `range(length)`. `more` are in it beside those whose bits are set."""

    length: int
    bits: Bytes
    more: Indices = field(default_factory=lambda: np.empty(0, np.uint32))

    @classmethod
    def of(cls, indices: Iterable[int] | Indices, length: int) -> SampleBitmap:
        """From indices below `length`."""
        return cls(length, np.zeros(0, np.uint8), np.unique(np.asarray(indices, np.uint32)))

    def with_more(self, indices: Indices) -> SampleBitmap:
        """This set and these samples."""
        return SampleBitmap(self.length, self.bits, np.unique(np.concatenate([self.more, indices])))

    def part(self, start: int, end: int) -> Bytes:
        """The bytes `start` to `end` of the bits, `more` included. A copy."""
        found = np.zeros(max(0, end - start), np.uint8)
        held = self.bits[start:end]
        found[: len(held)] = held
        low, high = np.searchsorted(self.more, [min(8 * start, 1 << 32), min(8 * end, 1 << 32)])
        mine = self.more[low:high].astype(np.int64) - 8 * start
        np.bitwise_or.at(found, mine >> 3, _BIT[mine & 7])
        return found

    def holds(self, indices: Indices) -> NDArray[np.bool_]:
        """Which of these samples are in it."""
        found = np.isin(indices, self.more)
        within = indices >> 3 < len(self.bits)
        found[within] |= (self.bits[indices[within] >> 3] & _BIT[indices[within] & 7]) != 0
        return found

    def __len__(self) -> int:
        return sum(count(part) for _, (part,) in parts([self]))


class KeptFile:
    """A file that holds the set of one pass; it is opened when it is asked for, and stays as it was then."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def content(self) -> tuple[SampleBitmap, int] | None:
        """The set, and how many draws it stands for; None when it cannot be read (any more). The bits stay on disk."""
        try:
            head = head_of(self.path, bitmap_file.HEAD.size)
            magic, _, length, covered = bitmap_file.HEAD.unpack(head)
            size = bitmap_file.bit_bytes(length)
            if magic != bitmap_file.MAGIC or self.path.stat().st_size < bitmap_file.HEAD_BYTES + size:
                return None
            bits = np.memmap(self.path, np.uint8, "r", bitmap_file.HEAD_BYTES, (size,))
            return SampleBitmap(length, bits), covered
        except (OSError, ValueError, struct.error):
            return None


def kept_files(folder: Path, spoiled: Container[Path] = ()) -> Mapping[tuple[int, int], Mapping[int, KeptFile]]:
    """All sets of a run folder but those in `spoiled` files, by (rank, attempt) and the number of the pass's record."""
    found: dict[tuple[int, int], dict[int, KeptFile]] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        named = bitmap_file.parse_name(path.name)
        if named and path not in spoiled:
            found.setdefault(named[:2], {})[named[2]] = KeptFile(path)
    return found


# --- counting --------------------------------------------------------------------------------------------------------------


def count(part: Bytes) -> int:
    """How many bits are set."""
    if hasattr(np, "bitwise_count") and len(part) % 8 == 0:  # numpy 2
        return int(np.bitwise_count(part.view(np.uint64)).sum(dtype=np.int64))
    return int(_ONES[part].sum(dtype=np.int64))


def parts(sets: Sequence[SampleBitmap]) -> Iterator[tuple[int, list[Bytes]]]:
    """Where a chunk starts, in bytes, and that chunk of every set."""
    size = max((bitmap_file.bit_bytes(one.length) for one in sets), default=0)
    for start in range(0, size, CHUNK_BYTES):
        end = min(size, start + CHUNK_BYTES)
        yield start, [one.part(start, end) for one in sets]


def in_several(parts: Iterable[Bytes]) -> tuple[Bytes, Bytes]:
    """(what is in any of these chunks, what is in more than one)."""
    first, *others = parts
    seen, twice = first.copy(), np.zeros_like(first)
    for part in others:
        twice |= seen & part
        seen |= part
    return seen, twice


def samples(start: int, part: Bytes, limit: int) -> Indices:
    """The first samples whose bits are set in a chunk that starts at byte `start`; at most `limit`."""
    where = np.flatnonzero(part)[:limit]
    set_bits = np.flatnonzero(np.unpackbits(part[where], bitorder="little"))[:limit]
    return np.asarray(8 * (start + where[set_bits >> 3]) + (set_bits & 7), np.uint32)


def missing(sets: Sequence[SampleBitmap]) -> SampleBitmap:
    """The samples that are in none of these sets (over the same data)."""
    length = sets[0].length
    bits = np.zeros(bitmap_file.bit_bytes(length), np.uint8)
    for start, chunks in parts(sets):
        seen, _ = in_several(chunks)
        bits[start : start + len(seen)] = ~seen
    bits[-(-length // 8) :] = 0
    if length % 8:
        bits[length // 8] &= (1 << length % 8) - 1
    return SampleBitmap(length, bits)


def pieces(one: SampleBitmap) -> int:
    """In how many runs of neighbours the set lies."""
    found, before = 0, False
    for _, (part,) in parts([one]):
        bits = np.unpackbits(part, bitorder="little").astype(bool)
        found += int(np.count_nonzero(bits[1:] & ~bits[:-1])) + int(bits[0] and not before)
        before = bool(bits[-1])
    return found


def last(one: SampleBitmap) -> int:
    """The largest sample in it, -1 of an empty set."""
    found = -1
    for start, (part,) in parts([one]):
        held = np.flatnonzero(part)
        if len(held):
            found = 8 * (start + int(held[-1])) + int(part[held[-1]]).bit_length() - 1
    return found


@dataclass(frozen=True)
class InCommon:
    """`union`: samples in any of the sets; `shared`: in more than one, the first of which are `examples`. `pairs`: how many two
    sets have in common, by their places; empty when nobody asked."""

    union: int
    shared: int
    examples: Indices
    pairs: Mapping[tuple[int, int], int]


def in_common(sets: Sequence[SampleBitmap], *, examples: int = 4096, pairs: bool = False) -> InCommon:
    """What these sets have in common, exactly."""
    union, shared, found = 0, 0, np.empty(0, np.uint32)
    counts = dict.fromkeys(combinations(range(len(sets)), 2), 0) if pairs else {}
    for start, chunks in parts(sets):
        seen, twice = in_several(chunks)
        union += count(seen)
        common = count(twice)
        shared += common
        if common and len(found) < examples:
            found = np.concatenate([found, samples(start, twice, examples - len(found))])
        if common:
            for one, other in counts:
                counts[one, other] += count(chunks[one] & chunks[other])
    return InCommon(union, shared, found, counts)
