"""Process groups that are made in every step."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.recording.trace.events import GroupDestroyed, NewGroupBegun
from distdoctor.testing.memory import MemoryJob, memory_job

LINE = "train.py:12 pair"


def training(every: int, *, steps: int = 24, destroys: bool = False) -> MemoryJob:
    """A group of the same two ranks is made in one of `every` steps."""
    job = memory_job(2)
    for step in range(steps):
        if step % every == 0:
            job.note(NewGroupBegun((0, 1), done_ns=1), site=LINE)
        if step % every == 0 and destroys:
            job.note(GroupDestroyed("7"), site=LINE)
        job.trains(1)
    return job.note(GroupDestroyed(""), site=LINE)  # all of them, at the end


def test_groups_that_are_made_in_every_step_and_never_destroyed_are_told() -> None:
    (finding,) = PLUGINS.checks["DD401"].look(training(1).recording())

    assert (finding.title, finding.confidence, finding.ranks) == (
        "process groups are made again and again and stay: 24 of the same ranks",
        "likely",
        (0, 1),
    )
    assert finding.place.line == 12


@pytest.mark.parametrize(("every", "destroys"), [(4, False), (1, True)], ids=["a few", "destroyed"])
def test_groups_of_an_epoch_and_those_that_are_destroyed_are_silent(every: int, destroys: bool) -> None:
    assert PLUGINS.checks["DD401"].look(training(every, destroys=destroys).recording()) == []


def test_groups_of_others_hold_nothing_on_a_rank() -> None:
    """Every rank has to call new_group for all pairs, and destroys its own."""
    job = memory_job(4)
    for _ in range(24):
        for pair in ((0, 1), (2, 3)):
            job.note(NewGroupBegun(pair, done_ns=1), site=LINE)
        job.note(GroupDestroyed("7"), site=LINE).trains(1)

    assert PLUGINS.checks["DD401"].look(job.recording()) == []
