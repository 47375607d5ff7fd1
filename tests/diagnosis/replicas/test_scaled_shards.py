"""Shards that each rank scales by a factor of its own between the reduction and the step."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY, Finding
from distdoctor.recording.trace.layout import TensorFlag
from distdoctor.testing.gradients import PARAMETERS, trained_job

OWN = {0: [1.0, 2.0, 3.0, 4.0], 1: [3.0, 2.0, 1.0, -1.0]}


def findings(*steps: Mapping[int, float], sharded: bool = True) -> tuple[Finding, ...]:
    """Of a job whose ranks scale their gradients by these factors, step by step."""
    flags = dict.fromkeys(PARAMETERS, TensorFlag.SHARDED if sharded else 0)
    job = trained_job(2, agree=(), flags=flags, wrapped=False).initial()
    for step, factors in enumerate(steps, 1):
        used = {rank: [factors[rank] * value for value in values] for rank, values in OWN.items()}
        job.step().spot(step, tensor=1, own=OWN, used=used)
    checks = [check for check in PLUGINS.checks.values() if check.code == "DD220"]
    return examine(job.recording(), checks).findings


def test_shards_scaled_by_another_factor_on_each_rank_are_found() -> None:
    (finding,) = findings({0: 1.0, 1: 1.0}, {0: 0.5, 1: 0.25}, {0: 0.4, 1: 0.3})

    assert (finding.ranks, finding.confidence, finding.evidence["step"]) == ((0, 1), LIKELY, 2)
    assert finding.evidence["factors"] == {0: 0.5, 1: 0.25}


@pytest.mark.parametrize(
    ("steps", "sharded"),
    [
        ([{0: 0.5, 1: 0.5}, {0: 0.25, 1: 0.25}], True),
        ([{0: 0.5, 1: 0.25}], True),
        ([{0: 0.5, 1: 0.25}, {0: 0.4, 1: 0.3}], False),
    ],
    ids=["one norm for all", "one step", "whole parameters"],
)
def test_one_factor_for_all_ranks_is_fine(steps: list[dict[int, float]], sharded: bool) -> None:
    assert findings(*steps, sharded=sharded) == ()
