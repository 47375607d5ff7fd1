"""Checkpoints that a thread writes while the optimizer changes the very tensors that are written.

How it is known: a thread besides the main one saved tensors that lie where an optimizer changes them, and the optimizer stepped
before the save was over; or the thread saved one such tensor after the other, each into a file of one folder, with steps between.
What was copied before the thread began, or is waited for before the next step, is whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from distdoctor.diagnosis.checkpoint.checkpoints import Checkpoints
from distdoctor.recording.trace.events import SavedAside


@dataclass(frozen=True)
class Torn:
    """One checkpoint that one rank wrote from step `first` to step `last`. `saves`: the files."""

    rank: int
    saves: tuple[SavedAside, ...]
    first: int
    last: int

    @property
    def path(self) -> str:
        """The file, or the folder of several."""
        paths = [PurePosixPath(save.path) for save in self.saves]
        return str(paths[0] if len(paths) == 1 else paths[0].parent)

    @property
    def tensors(self) -> int:
        return sum(save.live for save in self.saves)


def torn(checkpoints: Checkpoints) -> Iterator[Torn]:
    """Every such checkpoint, rank by rank in the order of their times."""
    rows: dict[tuple[int, int, str], list[SavedAside]] = defaultdict(list)
    for rank, save in checkpoints.events(SavedAside):
        rows[rank, save.thread, str(PurePosixPath(save.path).parent)].append(save)
    for (rank, *_), saves in rows.items():
        for row in _without_repetition(saves):
            last = max(save.done_step for save in row)
            if last > row[0].step and (len(row) > 1 or row[0].live > 1):
                yield Torn(rank, tuple(row), row[0].step, last)


def _without_repetition(saves: list[SavedAside]) -> Iterator[list[SavedAside]]:
    """Saves in rows, a new one where a tensor comes again: then it is another checkpoint, or a history of one tensor. A file with
    several tensors is a row of its own."""
    row: list[SavedAside] = []
    seen: set[int] = set()
    for save in saves:
        if row and (save.first in seen or save.live > 1 or row[-1].live > 1):
            yield row
            row, seen = [], set()
        row.append(save)
        seen.add(save.first)
    if row:
        yield row
