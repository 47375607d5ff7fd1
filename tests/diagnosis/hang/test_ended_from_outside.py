"""A scheduler ends a job host by host: ranks that are asked later lose their peers first, and nobody is to blame."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace

import pytest
from programs import judged

from distdoctor.launch.ends import ended_from_outside
from distdoctor.recording.recording import RankEnd, Recording
from distdoctor.recording.trace.events import UncaughtException
from distdoctor.testing import Script, recording
from distdoctor.testing.rank_trace import SECOND


def training() -> Script:
    script = recording(ranks=2)
    for _ in range(4):
        script.collective("all_reduce", [8], site="train.py:41 train_step").step()
    return script


def lost(ends: Callable[[Script], Script]) -> Recording:
    """Rank 0 ended in some way, and rank 1 fails in the next call for lack of it."""
    return (
        ends(training()).collective("all_reduce", [8], site="train.py:41 train_step", only=1).finished(survivors="fail")
    )


def interrupted(found: Recording) -> Recording:
    """The same under a scheduler that sent SIGTERM."""
    return replace(found, job=replace(found.job, interrupted=int(signal.SIGTERM)))


def asked(found: Recording) -> Recording:
    """The same with rank 0 asked by its launcher."""
    ends = found.job.ends
    return replace(found, job=replace(found.job, ends={**ends, 0: replace(ends[0], ended_by_launcher=True)}))


def codes(found: Recording) -> list[str]:
    return [one.code for one in judged(found)]


@pytest.mark.parametrize(
    "ended",
    [
        lambda script: script.killed(0, signal.SIGTERM),  # no launcher of ours was there to know better
        lambda script: script.exits(0),  # by a handler of its own
    ],
)
def test_ranks_that_lose_a_peer_to_the_scheduler_accuse_nobody(ended: Callable[[Script], Script]) -> None:
    found = lost(ended)

    assert codes(found), "without the scheduler somebody is to blame"
    assert codes(interrupted(asked(found))) == []


def test_a_peer_of_whose_end_nothing_is_known_has_not_vanished_where_the_scheduler_ended_the_job() -> None:
    found = lost(lambda script: script.stays(0))
    unknown = replace(found, job=replace(found.job, ends={1: found.job.ends[1]}))

    assert codes(unknown) == ["DD110"]
    assert codes(interrupted(unknown)) == []


def test_a_rank_that_had_left_long_before_the_job_was_ended_is_still_named() -> None:
    found = asked(lost(lambda script: script.exits(0)))
    late = replace(found.job.ends[0], at_ns=found.job.ends[0].at_ns + 60 * SECOND)
    hung = replace(found, job=replace(found.job, ends={**found.job.ends, 0: late}))

    assert codes(interrupted(hung)) == ["DD109"]


def test_an_error_of_its_own_is_named_whoever_ended_the_job() -> None:
    assert codes(interrupted(lost(lambda script: script.raises(0)))) == ["DD110"]


def test_a_rank_that_leaves_in_order_as_the_job_is_asked_to_end_was_asked() -> None:
    ends = {0: RankEnd(0, at_ns=20 * SECOND), 1: RankEnd(0, at_ns=5 * SECOND), 2: RankEnd(3, at_ns=20 * SECOND)}

    found = ended_from_outside(ends, asked_ns=20 * SECOND + 1)

    assert {rank: end.ended_by_launcher for rank, end in found.items()} == {0: True, 1: False, 2: False}


@pytest.mark.parametrize(("seconds", "by_the_interrupt"), [(0.4, True), (-0.4, False)])
def test_a_code_of_its_own_after_the_interrupt_is_no_failure(seconds: float, by_the_interrupt: bool) -> None:
    """Lightning catches the interrupt and exits with 1."""
    ends = {0: RankEnd(1, at_ns=int((20 + seconds) * SECOND))}

    found = ended_from_outside(ends, asked_ns=20 * SECOND)

    assert found[0].ended_by_launcher is by_the_interrupt


@pytest.mark.parametrize("before", [True, False])
def test_what_ranks_raise_after_ctrl_c_is_nobodys_failure(before: bool) -> None:
    """An error that came before it stays one: the job stood because of it, until somebody lost patience."""
    script = training().raises(0, "RuntimeError: eof", site="train.py:50 drive")
    found = script.finished(survivors="fail")
    (raised,) = found.ranks[0].noted(UncaughtException)
    asked_ns = raised.at_ns + (SECOND if before else -1)
    job = replace(found.job, interrupted=int(signal.SIGINT), interrupted_ns=asked_ns)

    assert codes(replace(found, job=job)) == (["DD110"] if before else [])
