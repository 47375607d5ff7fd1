"""Safe edits, applied to the text of a file, and the patch that `git apply` takes."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable

from distdoctor.lint.rule import Edit
from distdoctor.lint.source_file import lines_of


def applied(text: str, edits: Iterable[Edit]) -> tuple[str, int]:
    """(the text with the edits in it, how many went in). Edits that overlap another are left out; what no longer parses, all."""
    lines = lines_of(text)
    if lines and not lines[-1].endswith("\n"):
        return text, 0  # a patch for a file without a last newline needs a marker that people misread
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    raw, done, before = text.encode(), 0, len(text.encode()) + 1
    for edit in sorted(set(edits), key=lambda one: (one.line, one.column), reverse=True):
        start, end = starts[edit.line - 1] + edit.column, starts[edit.end_line - 1] + edit.end_column
        if end > before:
            continue
        raw, done, before = raw[:start] + _text(edit, lines).encode() + raw[end:], done + 1, start
    changed = raw.decode()
    try:
        ast.parse(changed)
    except (SyntaxError, ValueError):
        return text, 0
    return changed, done


def _text(edit: Edit, lines: list[str]) -> str:
    """Inserted lines end as the file's lines do."""
    return edit.text.replace("\n", "\r\n") if lines and lines[0].endswith("\r\n") else edit.text


def diff(path: str, before: str, after: str) -> str:
    """A unified diff with the prefixes that git gives."""
    return "".join(difflib.unified_diff(lines_of(before), lines_of(after), f"a/{path}", f"b/{path}"))
