"""Ranks that resume with the shards of another rank, and those that resume with their own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, Finding
from distdoctor.recording.states import StateSnapshot
from distdoctor.testing.gradients import trained_job
from distdoctor.testing.states import snapshot

NAMES = ("0.weight", "2.weight")


def state(when: str, run: str, rank: int, word: str, step: int = 0) -> StateSnapshot:
    weights = {name: f"{word} {name}" for name in NAMES}
    return snapshot(
        when, run=run, rank=rank, step=step, weights=weights, sharded=True, world_size=2, site="train.py:49 main"
    )


def findings(now: tuple[str, str], first: tuple[str, str] = ("a0", "a1")) -> tuple[Finding, ...]:
    """Rank 0 saves `b0`; the next run begins with these."""
    earlier = (*(state("start", "one", rank, first[rank]) for rank in range(2)), state("save", "one", 0, "b0", 20))
    starts = tuple(state("start", "two", rank, now[rank], 30) for rank in range(2))
    recording = replace(trained_job(2).initial().step().recording(), states=starts, earlier_states=earlier)
    return examine(recording, [check for check in PLUGINS.checks.values() if check.code == "DD706"]).findings


def test_a_rank_that_resumes_with_the_shards_of_another_is_named() -> None:
    (finding,) = findings(("b0", "b0"))

    assert (finding.ranks, finding.confidence) == ((1,), CERTAIN)
    assert finding.title == "rank 1 resumed from step 20 with the shards of rank 0"
    assert finding.place.line == 49


@pytest.mark.parametrize(
    ("now", "first"),
    [(("b0", "b1"), ("a0", "a1")), (("b0", "b0"), ("a0", "a0")), (("a0", "a1"), ("a0", "a1"))],
    ids=["its own shards", "replicas of one shard", "a fresh start"],
)
def test_ranks_that_hold_their_own_parts_are_fine(now: tuple[str, str], first: tuple[str, str]) -> None:
    assert findings(now, first) == ()
