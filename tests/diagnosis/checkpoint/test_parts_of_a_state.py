"""A part of the optimizer's state that one rank restores alone is told beside saves of earlier runs, too."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.recording.trace.events import StateLoaded
from distdoctor.testing.gradients import trained_job
from distdoctor.testing.states import snapshot

WEIGHTS = {"head.weight": "b"}


@pytest.mark.parametrize(("by", "ranks"), [([0], [(1,)]), ([0, 1], [])])
def test_a_rank_that_keeps_its_part_is_told_where_the_saves_are_known(
    by: list[int], ranks: list[tuple[int, ...]]
) -> None:
    earlier = (
        snapshot("start", run="one", weights={"head.weight": "a"}),
        snapshot("save", run="one", step=20, weights=WEIGHTS, site="train.py:42 main"),
    )
    starts = tuple(snapshot("start", run="two", rank=rank, weights=WEIGHTS, world_size=2) for rank in range(2))
    job = trained_job(2).initial().note(StateLoaded("module", ("Net",), own=3), site="train.py:50 resume")
    job.note(StateLoaded("optimizer", ("ZeroRedundancyOptimizer",), own=3), only=by, site="train.py:52 resume")
    recording = replace(job.step().recording(), states=starts, earlier_states=earlier)

    found = [*PLUGINS.checks["DD706"].look(recording)]
    assert [one.ranks for one in found] == ranks
    assert [one.place.line for one in found] == [52] * len(ranks)
