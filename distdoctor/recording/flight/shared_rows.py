"""Rows whose columns several ranks have in common: the calls of ten thousand dumps differ in their times and in little else.

They are read like any other rows: by a field's name, by a number, a slice or a mask, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class SharedRow:
    """One of the rows: its fields by name."""

    __slots__ = ("_at", "_columns")

    def __init__(self, columns: Mapping[str, Array], at: int) -> None:
        self._columns, self._at = columns, at

    def __getitem__(self, name: str) -> Any:
        return self._columns[name][self._at]


class SharedRows:
    """Rows, column by column. None of them is ever changed."""

    __slots__ = ("_columns", "_length", "dtype")

    def __init__(self, columns: Mapping[str, Array], dtype: np.dtype[np.void], length: int) -> None:
        self._columns, self._length, self.dtype = columns, length, dtype

    def __len__(self) -> int:
        return self._length

    @property
    def shape(self) -> tuple[int, ...]:
        return (self._length,)

    def __getitem__(self, what: Any) -> Any:
        if isinstance(what, str):
            return self._columns[what]
        if isinstance(what, int | np.integer):
            at = int(what) + (self._length if what < 0 else 0)
            if not 0 <= at < self._length:
                raise IndexError(f"there is no row {what} of {self._length}")
            return SharedRow(self._columns, at)
        if isinstance(what, slice):
            return SharedRows(
                {name: column[what] for name, column in self._columns.items()},
                self.dtype,
                len(range(*what.indices(self._length))),
            )
        return self._picked(what)

    def __iter__(self) -> Iterator[SharedRow]:
        return (SharedRow(self._columns, at) for at in range(self._length))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        rows = self._picked(slice(None))
        return rows if dtype is None else rows.astype(dtype)

    def _picked(self, which: Any) -> Array:
        """These rows as records of their own."""
        columns = {name: column[which] for name, column in self._columns.items()}
        rows = np.empty(len(columns["seq"]), self.dtype)
        for name, column in columns.items():
            rows[name] = column
        return rows
