"""Edits of a user's source as values, applied to a text. Nothing is written anywhere."""

from __future__ import annotations

import difflib
import io
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_ROW = re.compile(r"[^\n]*\n|[^\n]+")  # a line as git counts it


@dataclass(frozen=True)
class Edit:
    """Replace what lies between two positions. Lines count from 1, columns in UTF-8 bytes from 0, as in `ast`."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str


@dataclass(frozen=True)
class Patch:
    """A unified diff for `git apply`, run in `folder`. `digests`: (path, `source_digest`) of each file that it is made for."""

    text: str
    folder: str = ""
    digests: tuple[tuple[str, str], ...] = ()


def lines_of(text: str) -> list[str]:
    """The lines with their ends, counted as `ast` counts them: a form feed ends no line."""
    return io.StringIO(text, newline="").readlines()


def rows_replaced(path: str, first: int, last: int, rows: Sequence[str]) -> Edit:
    """The edit that puts rows, given without their ends, in the place of lines first..last; above `first` if last < first."""
    return Edit(path, first, 0, last + 1, 0, "".join(f"{row}\n" for row in rows))


def words_replaced(path: str, text: str, line: int, old: str, new: str) -> tuple[Edit, ...]:
    """The edit of one line that puts `new` for the only `old` in it; none where the line holds it not once."""
    lines = lines_of(text)
    if not 0 < line <= len(lines) or lines[line - 1].count(old) != 1:
        return ()
    column = len(lines[line - 1].partition(old)[0].encode())
    return (Edit(path, line, column, line, column + len(old.encode()), new),)


def row_inserted(path: str, text: str, line: int, statement: str) -> tuple[Edit, ...]:
    """The edit that puts a statement above a line, at its depth; none where there is no such line."""
    lines = lines_of(text)
    if not 0 < line <= len(lines) or not lines[line - 1].strip():
        return ()
    row = lines[line - 1]
    return (rows_replaced(path, line, line - 1, [row[: len(row) - len(row.lstrip())] + statement]),)


def applied(text: str, edits: Iterable[Edit]) -> tuple[str, int]:
    """(the text with the edits in it, how many went in). One that overlaps another is left out; what no longer compiles, all."""
    lines = lines_of(text)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    raw, done, before = text.encode(), 0, len(text.encode()) + 1
    for edit in sorted(set(edits), key=lambda one: (one.line, one.column), reverse=True):
        start, end = starts[edit.line - 1] + edit.column, starts[edit.end_line - 1] + edit.end_column
        if end > before:
            continue
        raw, done, before = raw[:start] + _with_ends_of(edit.text, lines).encode() + raw[end:], done + 1, start
    changed = raw.decode()
    return (changed, done) if _compiles(changed) else (text, 0)


def _compiles(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a file of somebody else's
            compile(text, "<patched>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True


def _with_ends_of(text: str, lines: Sequence[str]) -> str:
    """Inserted lines end as the file's lines do."""
    return text.replace("\n", "\r\n") if lines and lines[0].endswith("\r\n") else text


def diff(path: str, before: str, after: str) -> str:
    """A unified diff with the prefixes that git gives, and its word for a last line without an end."""
    rows = difflib.unified_diff(_ROW.findall(before), _ROW.findall(after), f"a/{path}", f"b/{path}")
    return "".join(row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n" for row in rows)
