"""A count of samples that a resumed run works out with a world size that the run which saved did not have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import POSSIBLE, Finding
from distdoctor.testing.gradients import trained_job
from distdoctor.testing.rank_trace import noting_sources
from distdoctor.testing.states import snapshot

SOURCE = """step = seen = 0
saved = torch.load(path)
step = saved["step"]
seen = {count}
while seen < total:
    train(seen)
    step, seen = step + 1, seen + taken
"""


def resumed(count: str, *, ranks_then: int) -> list[Finding]:
    weights = {"head.weight": "b"}
    earlier = (
        snapshot("start", run="one", weights={"head.weight": "a"}, world_size=ranks_then),
        snapshot("save", run="one", step=20, weights=weights, world_size=ranks_then, site="train.py:9 main"),
    )
    starts = tuple(
        snapshot("start", run="two", rank=rank, weights=weights, resumes=True, world_size=3) for rank in range(3)
    )
    job = trained_job(3).initial().step().recording()
    sources = {"/job/train.py": SOURCE.format(count=count)}
    ranks = noting_sources(dict(job.ranks), sources)
    recording = replace(job, ranks=ranks, sources=sources, states=starts, earlier_states=earlier)
    return list(examine(recording, [PLUGINS.checks["DD704"]]).findings)


def test_a_count_that_is_worked_out_for_another_number_of_ranks_is_possible() -> None:
    (finding,) = resumed("step * batch * world", ranks_then=2)
    assert finding.title == (
        "the resumed job takes seen for step * batch * world, with 3 ranks; the run that saved had 2: samples are lost"
    )
    assert (finding.confidence, finding.ranks, finding.place.line) == (POSSIBLE, (0, 1, 2), 4)


@pytest.mark.parametrize(
    ("count", "ranks_then"), [("saved['seen']", 2), ("step * batch * world", 3), ("step * batch", 2)]
)
def test_a_count_that_was_saved_or_is_of_as_many_ranks_is_left_alone(count: str, ranks_then: int) -> None:
    assert resumed(count, ranks_then=ranks_then) == []
