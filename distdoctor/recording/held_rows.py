"""The rows of many ranks in memory: field by field, as narrow as the numbers are, and once what ranks have alike.

Ranks of one job run the same lines and hold the same weights, so most fields of most records are the same on all of them. The
rows of one rank are put together when somebody looks at them, and forgotten soon after.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from distdoctor.recording.recording import RankTrace
from distdoctor.recording.trace.reader import Rows

RECENT = 256  # sections that stay put together: some ranks' worth, 28 KB each at most in a bundle
_NARROW = (np.uint8, np.uint16, np.uint32)
Numbers = NDArray[Any]
Finish = Callable[[Rows], None]


class Alike:
    """What the hosts of one job have alike: of columns that are equal, and of texts, there is one."""

    def __init__(self) -> None:
        self._columns: WeakValueDictionary[tuple[str, bytes], Numbers] = WeakValueDictionary()
        self._texts: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.values: dict[bytes, Any] = {}  # what was put apart, by its digest, as it was read

    def column(self, values: Numbers) -> Numbers:
        """An equal one that is known already, else this one."""
        known = f"{values.dtype}{values.shape}", hashlib.blake2b(values.tobytes(), digest_size=16).digest()
        return self._columns.setdefault(known, values)

    def texts(self, texts: tuple[str, ...]) -> tuple[str, ...]:
        """The same."""
        return self._texts.setdefault(texts, texts)


@dataclass(frozen=True, slots=True)
class _Column:
    """A field of all ranks, one after the other, or of any of them where all are `alike`: `low + unit * values`, modulo 2^64."""

    field: str
    values: Numbers
    low: int
    unit: int
    alike: bool

    def put_into(self, rows: Rows, own: slice) -> None:
        """Fill the field of one rank's rows."""
        values = self.values if self.alike else self.values[own]
        if values.ndim > 1:
            rows[self.field][:, : values.shape[1]] = values
        elif self.low or self.unit > 1:
            rows[self.field] = values.astype(np.uint64) * np.uint64(self.unit) + np.uint64(self.low)
        else:
            rows[self.field] = values


class _Section:
    """One section of the ranks of one host. `like` has the fields that are the same in all of its rows."""

    __slots__ = ("columns", "ends", "like")

    def __init__(self, ranks: Sequence[Rows], alike: Alike) -> None:
        rows = np.concatenate(ranks)
        self.ends = (0, *accumulate(map(len, ranks)))
        self.like: Rows = rows[:1].copy()
        varied = [name for name in rows.dtype.names or () if (rows[name] != rows[name][0]).any()]
        shape = (len(ranks), len(ranks[0])) if len({*map(len, ranks)}) == 1 else ()
        self.columns = tuple(_column(name, rows[name], shape, alike) for name in varied)

    def rows(self, rank: int) -> Rows:
        """Those of one rank, by its place."""
        own = slice(*self.ends[rank : rank + 2])
        found = self.like.repeat(own.stop - own.start)
        for column in self.columns:
            column.put_into(found, own)
        return found


def _column(field: str, found: Numbers, shape: tuple[int, ...], alike: Alike) -> _Column:
    """A field of all ranks. `shape`: [ranks, rows], where all have equally many."""
    by_rank = found.reshape(*shape, *found.shape[1:]) if shape else found[None]
    same = bool(shape) and bool((by_rank == by_rank[0]).all())
    values, low, unit = _narrowed(by_rank[0] if same else found)
    is_time = field.endswith("_ns")  # no two hosts have the same
    return _Column(field, values if is_time else alike.column(values), low, unit, same)


def _narrowed(column: Numbers) -> tuple[Numbers, int, int]:
    """What is left of whole numbers without what all of them have in common, and that."""
    if column.dtype.kind == "f":
        return column.copy(), 0, 1
    left, low, unit = column.astype(np.uint64), 0, 1
    if left.ndim > 1:
        used = np.flatnonzero(left.any(axis=0))
        left = left[:, : int(used[-1]) + 1 if len(used) else 0]
    else:
        least = column.min()
        left -= least.astype(np.uint64)
        low = int(least) & 0xFFFFFFFFFFFFFFFF
        unit = max(1, int(np.gcd.reduce(left)))
        left //= np.uint64(unit)
    highest = int(left.max(initial=0))
    narrow = next((kind for kind in _NARROW if highest <= np.iinfo(kind).max), np.uint64)
    return np.ascontiguousarray(left, narrow), low, unit


class HeldRows:
    """The rows of one section of one rank, `finish`ed when they are put together."""

    __slots__ = ("_finish", "_rank", "_section")

    def __init__(self, section: _Section, rank: int, finish: Finish | None = None) -> None:
        self._section, self._rank, self._finish = section, rank, finish

    def finished_by(self, finish: Finish) -> HeldRows:
        """The same rows, of which something is still to be worked out."""
        return HeldRows(self._section, self._rank, finish)

    @property
    def rows(self) -> Rows:
        """As an array that nobody may change."""
        return _put_together(self)

    def put_together(self) -> Rows:
        """The same, worked out anew."""
        found = self._section.rows(self._rank)
        if self._finish is not None:
            self._finish(found)
        found.flags.writeable = False
        return found


@lru_cache(maxsize=RECENT)
def _put_together(held: HeldRows) -> Rows:
    return held.put_together()


def hold(ranks: Sequence[Mapping[str, Rows]], alike: Alike) -> list[dict[str, HeldRows]]:
    """The sections of each rank of one host."""
    found: list[dict[str, HeldRows]] = [{} for _ in ranks]
    for name in dict.fromkeys(name for own in ranks for name in own):
        having = [number for number, own in enumerate(ranks) if len(own.get(name, ()))]
        section = _Section([ranks[number][name] for number in having], alike) if having else None
        for place, number in enumerate(having):
            found[number][name] = HeldRows(section, place)  # type: ignore[arg-type]
    return found


class HeldMore(Mapping[str, Rows]):
    """The sections that only some recordings have."""

    __slots__ = ("_held",)

    def __init__(self, held: Mapping[str, HeldRows]) -> None:
        self._held = held

    def __getitem__(self, name: str) -> Rows:
        return self._held[name].rows

    def __contains__(self, name: object) -> bool:
        return name in self._held

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


def _section(name: str) -> Any:
    """An attribute that is given as `HeldRows`, or as rows, and read as rows."""

    def read(log: HeldTrace) -> Rows:
        rows: Any = log.__dict__[name]
        return rows.rows if isinstance(rows, HeldRows) else rows

    def write(log: HeldTrace, rows: Rows | HeldRows) -> None:
        log.__dict__[name] = rows

    return property(read, write)


class HeldTrace(RankTrace):
    """One rank's rows, each section put together when it is asked for."""

    calls = _section("calls")
    groups = _section("groups")
    steps = _section("steps")
    events = _section("events")
    passes = _section("passes")
    blocks = _section("blocks")
