"""What `py-spy dump` printed into the midst of a log: of a shell in a container, of a rank that calls it, pasted by somebody.

Lines of several ranks run into each other there, each with its launcher's prefix; a stack goes on with the next line that has the
prefix of its first one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from distdoctor.recording.printed_rank import printer_of, without_prefixes
from distdoctor.recording.py_spy_dump import MAIN, StackDump, is_begin, is_part, of_text

MOST_LINES = 200_000  # of stacks in one log
_MAIN = re.compile(rf'Thread (\d{{1,10}}) \([a-z+]{{1,20}}\): "{MAIN}"')
_NO_RANK = re.compile(r"(?!)")  # whose it is the prefix says


@dataclass
class _Block:
    """What one of those who print has printed of one process. `spaces` stand between prefix and line."""

    first: str
    spaces: int
    lines: list[str] = field(default_factory=list)


class PrintedStacks:
    """The blocks of py-spy's text among the lines of a log, which come one by one."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._open: dict[str, _Block] = {}
        self._count = 0
        self.last = 0  # the number of the line with which the last process begins

    def see(self, number: int, line: str) -> None:
        """Take the next line of the log."""
        if not self._open and "Process " not in line and MAIN not in line:
            return
        words = without_prefixes(line)
        printer, begins = printer_of(line, words), is_begin(words)
        main = None if begins else _MAIN.match(words)
        known = self._open_lines(printer)
        headless = main is not None and (not known or any(MAIN in one for one in known))
        prefix = line[: len(line) - len(words)].rstrip()
        if begins or headless:
            self.last = number
            self._open[printer] = _Block(line, len(line) - len(words) - len(prefix))
            self._blocks.append(self._open[printer])
            if (
                main is not None
            ):  # whoever pasted it has left out the first line; its main thread has the number of the process
                self._open[printer].lines.append(f"Process {main[1]}: python")
        block = self._open.get(printer)
        if block is None:
            return
        text = line[len(prefix) :][block.spaces :]
        self._count += 1
        if (begins or is_part(text) or not text.strip()) and self._count <= MOST_LINES:
            block.lines.append(text)
        else:
            del self._open[printer]

    def _open_lines(self, printer: str) -> list[str]:
        block = self._open.get(printer)
        return block.lines if block is not None else []

    def dumps(self, rank_of: Callable[[str], int]) -> Iterator[StackDump]:
        """The processes that were printed, each with the rank that printed it, as far as its prefix tells."""
        for block in self._blocks:
            rank = rank_of(block.first)
            for dump in of_text(block.lines, _NO_RANK):
                yield replace(dump, rank=rank) if rank >= 0 else dump
