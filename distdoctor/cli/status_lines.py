"""The last lines of a terminal, kept free of what else is printed there, as package managers do with their progress.

The terminal scrolls only above them (DECSTBM), so whatever the ranks print, they print as ever, straight to the terminal.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO

SHARE = 3  # at most one in so many of the terminal's rows is taken
SAVE, RESTORE = "\x1b7", "\x1b8"  # the cursor, which the ranks go on writing at
DOWN = "\x1bD"  # one row, in the same column; at the bottom the terminal scrolls
PLAIN = "\x1b[0m"  # whatever colour a rank has left on


class StatusLines:
    """`show` replaces them, `close` gives their rows back. What is drawn is one write each time: between its parts nobody else's
    words come to the terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._size = os.terminal_size((0, 0))
        self._height = 0  # rows that are taken

    @property
    def room(self) -> int:
        """How many lines may be shown."""
        return os.get_terminal_size(self._stream.fileno()).lines // SHARE

    def show(self, lines: Sequence[str]) -> None:
        """Draw them, cut to the terminal; none where it is too small."""
        size = os.get_terminal_size(self._stream.fileno())
        wanted = min(len(lines), self.room)
        words = ""
        if size != self._size or wanted > self._height:
            words = self._taken(size, max(wanted, self._height if size == self._size else 0))
        if not self._height:
            return
        first = self._size.lines - self._height + 1
        shown = [*lines[: self._height], *[""] * (self._height - len(lines))]
        rows = (f"\x1b[{first + row};1H\x1b[2K{line[: size.columns - 1]}" for row, line in enumerate(shown))
        self._write(f"{words}{SAVE}{PLAIN}{''.join(rows)}{RESTORE}")

    def close(self) -> None:
        """The whole terminal scrolls again, and they are gone."""
        if self._height:
            self._write(self._given_back())
            self._height = 0

    def _taken(self, size: os.terminal_size, height: int) -> str:
        """What takes so many rows: the cursor, and what was printed, moves up where it stands in them."""
        words = self._given_back() if self._height else ""
        self._size, self._height = size, height
        if not height:
            return words
        return f"{words}{DOWN * height}\x1b[{height}A{SAVE}\x1b[1;{size.lines - height}r{RESTORE}"

    def _given_back(self) -> str:
        return f"{SAVE}\x1b[r\x1b[{self._size.lines - self._height + 1};1H\x1b[J{RESTORE}"

    def _write(self, words: str) -> None:
        self._stream.flush()
        os.write(self._stream.fileno(), words.encode(self._stream.encoding or "utf-8", "replace"))
