"""A table of a report: the same rows as text, as JSON and in the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """`columns` name what the cells of `rows` are, numbers and texts; `shown` is what people read where that differs. `notes` are
    lines below it."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | int | float | None, ...], ...]
    shown: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def cells(self) -> tuple[tuple[str, ...], ...]:
        """The rows as people read them."""
        return self.shown or tuple(tuple("-" if one is None else str(one) for one in row) for row in self.rows)

    def lines(self) -> list[str]:
        """The table as text: its title, columns of equal width, numbers to the right."""
        return [self.title, *(f"  {line}" for line in aligned([self.columns, *self.cells])), *self.notes]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width; those that hold numbers in every row but the first to the right."""
    columns = range(len(rows[0]))
    widths = [max(len(row[column]) for row in rows) for column in columns]
    right = [all(row[column][:1].isdigit() or row[column] in ("", "-") for row in rows[1:]) for column in columns]
    return [
        "  ".join(
            row[column].rjust(widths[column]) if right[column] else row[column].ljust(widths[column])
            for column in columns
        ).rstrip()
        for row in rows
    ]


def milliseconds(nanoseconds: float) -> str:
    """`12.3 ms`, `1.52 s`; `-` where it is not known."""
    if math.isnan(nanoseconds):
        return "-"
    value = nanoseconds / 1e6
    return f"{value / 1e3:.2f} s" if value >= 1e4 else f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms"
