"""An edit is shown only where it was played through what each rank called, and ends what it is for."""

from __future__ import annotations

from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.facts.collectives import Collectives
from distdoctor.diagnosis.hang.played import agrees_without_reductions, comes_through_waiting
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.layout import CallFlag
from distdoctor.testing import Script, recording

SITE = SourceLine("/job/train.py", 12, "average")
SOURCE = "\n" * 11 + "    dist.all_reduce(loss, async_op=True)\n" + "    dist.barrier(group=pair)\n"


def _dropped(script: Script, only: list[int] | None = None) -> Script:
    return script.collective(
        "all_reduce", [8], asynchronous=True, flags=CallFlag.DROPPED, site="train.py:12 average", only=only
    )


def _with_source(script: Script) -> Script:
    return script.source("train.py", "def average(loss, pair):\n" + SOURCE[1:])


def _crossing() -> Recording:
    """One rank makes the call before the barrier of a second group, the other behind it: that works as long as nobody waits."""
    script = _with_source(recording(ranks=2).group("pair", [0, 1]))
    for _ in range(3):
        _dropped(script, [0]).collective("barrier", group="pair", site="train.py:13 average", only=[0])
        script.collective("barrier", group="pair", site="train.py:13 average", only=[1])
        _dropped(script, [1])
    return script.finished()


def test_waiting_at_once_comes_through_where_all_ranks_make_their_calls_in_one_order() -> None:
    script = recording(ranks=2).group("pair", [0, 1])
    for _ in range(3):
        _dropped(script).collective("barrier", group="pair", site="train.py:13 average")
    assert comes_through_waiting(Collectives.of(script.finished()), SITE)


def test_waiting_at_once_may_be_a_deadlock_of_its_own() -> None:
    assert not comes_through_waiting(Collectives.of(_crossing()), SITE)
    assert comes_through_waiting(Collectives.of(_crossing()), SourceLine("/job/train.py", 99))


def test_a_wait_that_would_hang_is_told_in_words_alone() -> None:
    def edits(job: Recording) -> object:
        (finding,) = examine(job, [PLUGINS.checks["DD120"]], PLUGINS.remedies).findings
        return finding.prescriptions[0].edits

    straight = _with_source(recording(ranks=2))
    for _ in range(3):
        _dropped(straight)
    assert edits(straight.finished())
    assert not edits(_crossing())


def test_what_a_wrapper_reduces_may_change_where_the_programs_own_calls_agree() -> None:
    script = recording(ranks=2)
    script.collective("all_reduce", [64], native=True, site="train.py:20 train", only=[0])
    script.collective("all_reduce", [8], site="train.py:12 average")
    assert agrees_without_reductions(Collectives.of(script.live()))

    script = recording(ranks=2).collective("barrier", site="train.py:20 train", only=[0])
    script.collective("all_reduce", [8], site="train.py:12 average")
    assert not agrees_without_reductions(Collectives.of(script.live()))
