"""What only some ranks empty grows on the others."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.let_go import emptied_by_others
from distdoctor.recording.recording import SourceLine

TRAIN = """class Log:
    def __init__(self):
        self.kept = []
    def hook(self, module, given, output):
        self.kept.append(output)
    def reset(self):
        self.kept.clear()


def train(log, rank, loader):
    for step, batch in enumerate(loader):
        if {guard}:
            log.reset()
        {more}
"""


def found(rank: int, guard: str = "rank == 0", more: str = "pass") -> tuple[int, str] | None:
    text = {"train.py": TRAIN.format(guard=guard, more=more)}
    told = emptied_by_others(text, SourceLine("train.py", 5, "hook"), "log.kept", rank)
    return (told[0].line, told[1]) if told is not None else None


def test_a_rank_that_never_comes_to_the_line_that_empties_it_is_told_the_condition() -> None:
    assert found(1) == (13, "rank == 0")
    assert found(0) is None


@pytest.mark.parametrize(
    ("guard", "more"),
    [
        ("step % 10 == 0", "pass"),
        ("rank == 0", "log.reset()"),
        ("rank == 0", "log.kept = []"),
        ("rank == 0", "log.kept = log.kept[-9:]"),
        ("rank == 0", "del log.kept[:-9]"),
        ("rank == 0", "print(len(log.kept))"),
    ],
)
def test_what_every_rank_empties_somewhere_is_none(guard: str, more: str) -> None:
    assert found(1, guard, more) is None
