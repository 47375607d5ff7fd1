"""Checkpoints that one rank publishes for others: who reads takes what is there."""

from __future__ import annotations

from sick import PLUGINS

from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.trace.events import Loading, Renamed, Saving
from distdoctor.testing.rank_trace import MILLISECOND, START_NS, TraceBuilder

CHECK = PLUGINS.checks["DD705"]
PATH, PART = "/job/policy.pt", "/job/policy.pt.tmp"


def published(*, renames: bool = True, reads_itself: bool = False) -> Recording:
    """Rank 0 saves at 10 and at 40 ms, rank 1 loads at 30 ms."""
    logs = [TraceBuilder(rank, world_size=2) for rank in (0, 1)]
    times = [START_NS + n * MILLISECOND for n in range(100)]
    for log in logs:
        log.group("0", (0, 1), at_ns=times[0])
        log.call("all_reduce", [4], site="train.py:30 main", at_ns=times[1])
    for begun in (10, 40):
        logs[0].note(
            Saving(PART if renames else PATH, "torch.save", 1, times[begun + 5]),
            site="train.py:35 main",
            at_ns=times[begun],
        )
        if renames:
            logs[0].note(Renamed(PART, PATH), site="train.py:36 main", at_ns=times[begun + 6])
    logs[1].note(Loading(PATH, "torch.load", 1, times[31]), site="train.py:38 main", at_ns=times[30])
    if reads_itself:
        logs[0].note(Loading(PATH, "torch.load", 1, times[51]), site="train.py:38 main", at_ns=times[50])
    return Recording(Job(world_size=2), {log.rank: log.build() for log in logs})


def test_readers_of_what_a_learner_publishes_are_not_too_early() -> None:
    assert CHECK.look(published()) == []
    assert len(CHECK.look(published(reads_itself=True))) == 1
    assert len(CHECK.look(published(renames=False))) == 1
