"""A loss that is written down twice, within no_sync and without, is one loss; of several losses of one batch a sum is meant."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import Finding
from distdoctor.recording.trace.layout import UpdateFlag
from distdoctor.testing.timing import timed_job


def told(*, synced: int = 1, batches: int = 4, roots: str = "NllLoss mean", flags: int = 0) -> list[Finding]:
    """Four backward passes in each step."""
    job = timed_job(2)
    job.steps(8, micro_steps=4, synced=synced, roots=roots, flags=UpdateFlag.DIGESTED | UpdateFlag.STATE | flags)
    for log in job.logs:
        for row in log._rows["times"]:
            row["batches"] = batches
    return list(examine(job.recording(), [PLUGINS.checks["DD208"]]).findings)


def test_micro_batches_that_two_lines_add_up_undivided_are_told_without_a_patch_for_one_of_them() -> None:
    (finding,) = told()

    assert finding.title.startswith("gradients are 4 times too large")
    assert not finding.prescriptions[0].edits


@pytest.mark.parametrize(
    "about",
    [{"batches": 1}, {"synced": 4}, {"synced": 2}, {"roots": "div 4;NllLoss mean"}],
    ids=["several losses of one batch", "all of them averaged", "averaged twice", "divided"],
)
def test_several_losses_and_divided_ones_are_not(about: dict[str, object]) -> None:
    assert told(**about) == []  # type: ignore[arg-type]
