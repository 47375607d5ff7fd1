"""The rows in bundles of versions 3 and 4, whose fields were each told by the field itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.recording.bundle_rows import MICROSECOND, restore
from distdoctor.recording.row_columns import Section
from distdoctor.recording.trace.layout import RECORDS, record_of
from distdoctor.recording.trace.reader import Rows, dtype_of, widened

# Times that follow another one of the same row: version 4 tells by how much.
_FOLLOWS = {
    "calls": {"returned_ns": "entered_ns"},
    "times": {"forward_ended_ns": "at_ns", "backward_ended_ns": "at_ns"},
}


def read_sections(
    ranks: Sequence[Mapping[str, Section]], columns: Sequence[bytes], version: int
) -> list[dict[str, Rows]]:
    """The rows of each rank's sections; none where another layout wrote them.

    ValueError, IndexError: their columns are not all there.
    """
    found = [{name: _rows(name, section, columns) for name, section in own.items() if name in RECORDS} for own in ranks]
    for own in found if version > 3 else ():
        for name, rows in own.items():
            for field, base in _FOLLOWS.get(name, {}).items():
                rows[field] += rows[base]
            restore(name, rows, MICROSECOND)
    return found


def _rows(name: str, section: Section, columns: Sequence[bytes]) -> Rows:
    record = record_of(name, section.stride)
    if record is None or len(section.columns) != len(record.fields):
        return np.empty(0, dtype_of(RECORDS[name]))
    dtype = dtype_of(record)
    fields = dtype.names or ()
    own = [columns[number] for number in section.columns]
    if any(len(column) != section.rows * dtype[at].itemsize for at, column in enumerate(own)):
        raise ValueError(f"a column of {name} has another length than the others")
    rows = np.empty(section.rows, dtype)
    for field, column in zip(fields, own, strict=True):
        rows[field] = _read(column, dtype[field], section.rows)
    return widened(name, rows)


def _read(data: bytes, dtype: np.dtype[Any], rows: int) -> NDArray[Any]:
    """A field of all rows: of whole numbers what each adds to the one before; all lowest bytes first, then all next ones, ..."""
    planes = np.frombuffer(data, np.uint8).reshape(dtype.base.itemsize, -1)
    column = np.ascontiguousarray(planes.T).view(dtype.base).reshape(rows, *dtype.shape)
    if not dtype.shape and dtype.kind in "iu":
        return np.cumsum(column.view(f"u{dtype.itemsize}"), dtype=f"u{dtype.itemsize}").view(dtype)
    return column
