"""The rows of many ranks' sections as few bytes: field by field, rank after rank, each number by what foretells it best.

Ranks of one host read one clock, run the same lines and hold the same weights: what one of them has recorded of a step or a call
foretells what the next has. Only what is left of a number is written, lowest bytes of all rows first, and of the highest bytes,
which are 0 in all rows, nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from distdoctor.recording.trace.layout import Record, record_of
from distdoctor.recording.trace.reader import Rows, dtype_of, widened

MOST_ROWS = 1 << 16  # of a section of one rank: no trace holds that many, and more are meant to fill the memory
Numbers = NDArray[Any]
Places = NDArray[np.intp]
# What foretells a number: nothing, another time of its row, the like row of an earlier rank, or both. The lowest bit of a way:
# what is left is told by how it changes from row to row. The highest: doubles that were floats before are told as floats.
_CHANGE, _BASE, _LIKE, _SINGLE, _WAYS = 1, 2, 4, 8, 16
_BASES = {
    "calls": {"returned_ns": "entered_ns", "waited_ns": "entered_ns"},
    "times": {"forward_began_ns": "at_ns", "forward_ended_ns": "at_ns", "backward_ended_ns": "at_ns"},
    "passes": {"ended_ns": "started_ns"},
}
# Rows of two ranks that agree in these fields tell of the same. They are written first.
_KEYS = {
    "calls": ("group", "number", "op"),
    "groups": ("key",),
    "steps": ("step",),
    "times": ("step",),
    "events": ("kind", "site"),
    "passes": ("loader", "pass_number"),
    "blocks": ("pass_seq", "block_number", "kind"),
    "workers": ("pass_seq", "worker"),
    "updates": ("step", "optimizer", "agree"),
    "digests": ("step", "tensor"),
    "spots": ("step", "tensor"),
    "memory": ("step",),
    "holders": ("step", "label"),
    "saved": ("step", "path"),
    "peaks": ("step", "phase"),
}


class Section(msgspec.Struct, array_like=True):
    """Of one rank. `columns`: of each field, the keys first, 0 for the next column, n for the n-th again; `ways`: see above."""

    rows: int
    stride: int
    columns: list[int]
    ways: list[int] = []


class _Table:
    """One section of all ranks that have it, one after the other."""

    def __init__(self, name: str, rows: Rows, lengths: Sequence[int]) -> None:
        self.name, self.rows = name, rows
        ends = list(accumulate(lengths))
        self.slices = [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]
        self._like: list[Places | None] = [
            np.arange(lengths[0]) if number and length == lengths[0] else None for number, length in enumerate(lengths)
        ]

    def fields(self) -> Iterator[str]:
        """The fields in the order in which they are written."""
        keys = _KEYS.get(self.name, ("seq",))
        yield from keys
        self._like = list(self._rows_alike(keys))
        yield from (field for field in self.rows.dtype.names or () if field not in keys)

    def _rows_alike(self, keys: Sequence[str]) -> Iterator[Places | None]:
        """For each row of a rank the place of an earlier one with the same keys, else that of a row beside it."""
        known: dict[Any, int] = {}
        for own in self.slices:
            held = self.rows[list(keys)][own].tolist()
            places = np.array([known.get(key, -1) for key in held], np.intp)
            for place, key in enumerate(held, own.start):
                known.setdefault(key, place)
            there = np.flatnonzero(places >= 0)
            yield (
                places[there[np.maximum(np.searchsorted(there, np.arange(len(held)), "right") - 1, 0)]]
                if len(there)
                else None
            )

    def numbers(self, field: str, rank: int, way: int = 0) -> Numbers:
        """The bits of a field as whole numbers without a sign."""
        return _bits(self.rows[field][self.slices[rank]], way)

    def ways(self, field: str, rank: int) -> list[int]:
        """Those that there are for a field."""
        is_based, has_like = field in _BASES.get(self.name, {}), self._like[rank] is not None
        is_list, is_double = self.rows[field].ndim > 1, self.rows[field].dtype == np.float64
        refused = _CHANGE * is_list | _BASE * (not is_based) | _LIKE * (not has_like) | _SINGLE * (not is_double)
        return [way for way in range(_WAYS) if not way & refused]

    def foretold(self, way: int, field: str, rank: int) -> Any:
        """By a way, without its lowest bit."""
        base, like = _BASES.get(self.name, {}).get(field, ""), self._like[rank]
        found: Any = _bits(self.rows[field][:0], way).dtype.type(0)
        if way & _BASE:
            found = found + self.numbers(base, rank)
        if way & _LIKE and like is not None:
            found = found + _bits(self.rows[field][like], way)
            found = found - _bits(self.rows[base][like], way) if way & _BASE else found
        return found


def _bits(column: Numbers, way: int) -> Numbers:
    if way & _SINGLE:
        with np.errstate(over="ignore", invalid="ignore"):
            column = column.astype(np.float32)
    return np.ascontiguousarray(column).view(f"u{column.dtype.itemsize}")


def write_sections(ranks: Sequence[Mapping[str, Rows]]) -> tuple[list[dict[str, Section]], list[bytes]]:
    """The sections of each rank, and the columns of which they are made."""
    found = [{name: Section(len(rows), rows.dtype.itemsize, [], []) for name, rows in own.items()} for own in ranks]
    columns: dict[bytes, int] = {}
    for name in dict.fromkeys(name for own in ranks for name in own):
        sections = [one[name] for one in found if name in one]
        table = _Table(
            name, np.concatenate([own[name] for own in ranks if name in own]), [one.rows for one in sections]
        )
        for field in table.fields():
            for rank, section in enumerate(sections):
                way, column = _written(table, field, rank)
                section.ways.append(way)
                section.columns.append(columns.get(column, 0))
                columns.setdefault(column, len(columns) + 1)
    return found, list(columns)


def columns_of(ranks: Sequence[Mapping[str, Section]], name: str) -> range:
    """The places of the columns that were written for a section."""
    begin = 0
    for other in dict.fromkeys(section for own in ranks for section in own):
        new = sum(number == 0 for own in ranks if other in own for number in own[other].columns)
        if other == name:
            return range(begin, begin + new)
        begin += new
    return range(0)


def _written(table: _Table, field: str, rank: int) -> tuple[int, bytes]:
    """The way that takes the fewest bits, and what is left of a field by it."""
    numbers, ways = table.numbers(field, rank), table.ways(field, rank)
    if _LIKE in ways and np.array_equal(numbers, table.foretold(_LIKE, field, rank)):
        return _LIKE, b""
    if _SINGLE in ways:
        with np.errstate(invalid="ignore"):
            doubles = table.numbers(field, rank, _SINGLE).view(np.float32).astype(np.float64)
        if not np.array_equal(doubles.view(np.uint64), numbers):
            ways = [way for way in ways if not way & _SINGLE]
    left = {way: _left(table.numbers(field, rank, way) - table.foretold(way, field, rank), way) for way in ways}
    best = min(ways, key=lambda way: float(np.log2(left[way].astype(float) + 1.0).sum()))
    return best, _planes(left[best])


def _left(numbers: Numbers, way: int) -> Numbers:
    """Numbers that are small where the others are, of either sign."""
    if way & _CHANGE:
        numbers = np.diff(numbers, prepend=np.zeros(1, numbers.dtype))
    signed = numbers.view(f"i{numbers.dtype.itemsize}")
    return ((signed << 1) ^ (signed >> (8 * numbers.dtype.itemsize - 1))).view(numbers.dtype)


def _planes(left: Numbers) -> bytes:
    planes = np.ascontiguousarray(left).reshape(-1).view(np.uint8).reshape(-1, left.dtype.itemsize).T
    used = np.flatnonzero(planes.any(axis=1))
    return planes[: int(used[-1]) + 1 if len(used) else 0].tobytes()


def read_sections(ranks: Sequence[Mapping[str, Section]], columns: Sequence[bytes]) -> list[dict[str, Rows]]:
    """The rows of each rank's sections; not those that another layout wrote.

    ValueError, IndexError: that is not what `write_sections` has written.
    """
    found: list[dict[str, Rows]] = [{} for _ in ranks]
    following = iter(range(len(columns)))
    for name in dict.fromkeys(name for own in ranks for name in own):
        holding = [(own[name], into) for own, into in zip(ranks, found, strict=True) if name in own]
        sections = [section for section, _ in holding]
        width = max(len(section.columns) for section in sections)
        if any(len(section.columns) != width or len(section.ways) != width for section in sections):
            raise ValueError(f"a section of {name} has other fields than the others")
        if max(section.rows for section in sections) > MOST_ROWS:
            raise ValueError(f"a rank has more than {MOST_ROWS} {name}")
        data = [
            [columns[one.columns[at] - 1 if one.columns[at] else next(following, len(columns))] for one in sections]
            for at in range(width)
        ]
        record = record_of(name, sections[0].stride)
        if record is not None and all((one.stride, width) == (record.size, len(record.fields)) for one in sections):
            for (_, into), rows in zip(holding, _read(record, sections, data), strict=True):
                into[name] = widened(name, rows)
    return found


def _read(record: Record, sections: Sequence[Section], data: Sequence[Sequence[bytes]]) -> list[Rows]:
    name, lengths = record.name, [one.rows for one in sections]
    table = _Table(name, np.zeros(sum(lengths), dtype_of(record)), lengths)
    for at, field in enumerate(table.fields()):
        for rank, section in enumerate(sections):
            way = section.ways[at]
            if way not in table.ways(field, rank):
                raise ValueError(f"nothing foretells {field} of {name}")
            left = _numbers(data[at][rank], table.numbers(field, rank, way), way)
            into = table.rows[field][table.slices[rank]]
            into[...] = (left + table.foretold(way, field, rank)).view(np.float32 if way & _SINGLE else into.dtype)
    return [table.rows[own].copy() for own in table.slices]


def _numbers(data: bytes, like: Numbers, way: int) -> Numbers:
    """The numbers of which `_left` and `_planes` made the data, in the shape of these."""
    width = like.dtype.itemsize
    if len(data) > width * like.size or (data and len(data) % like.size):
        raise ValueError("a column has another length than the others")
    planes = np.zeros((width, like.size), np.uint8)
    planes[: len(data) // like.size if data else 0] = np.frombuffer(data, np.uint8).reshape(-1, max(1, like.size))
    left = np.ascontiguousarray(planes.T).view(like.dtype).reshape(like.shape)
    numbers = (left >> 1) ^ (~(left & 1) + like.dtype.type(1))
    return np.cumsum(numbers, dtype=like.dtype) if way & _CHANGE else numbers
