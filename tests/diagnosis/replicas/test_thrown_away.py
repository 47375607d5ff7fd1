"""zero_grad between the micro-batches of one step: an accident where the window is declared, else a way of its own."""

from __future__ import annotations

from typing import Any

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.finding import LIKELY, Finding
from distdoctor.recording.trace.events import Cleared
from distdoctor.recording.trace.layout import UpdateFlag
from distdoctor.testing.gradients import trained_job

FLAGS = UpdateFlag.DIGESTED | UpdateFlag.ONE_LINE | UpdateFlag.CLEARED
WINDOW: dict[str, Any] = {
    "backwards": 4,
    "synced": 1,
    "unsynced": 3,
    "flags": FLAGS,
    "roots": "div 4;NllLoss mean",
}


def found(**fields: Any) -> list[Finding]:
    job = trained_job(2).initial()
    for step in (1, 2, 3):
        job.step(**{**WINDOW, **fields}).note(Cleared(1, step), site="train.py:20 train")
    return PLUGINS.checks["DD208"].look(job.recording())


def test_gradients_of_a_window_that_are_zeroed_before_its_last_micro_batch_are_told_with_that_line() -> None:
    (finding,) = found()

    assert finding.title.startswith("zero_grad comes before the last of 4 micro-batches")
    assert (finding.ranks, finding.confidence, finding.place.short) == ((0, 1), LIKELY, "train.py:20")


@pytest.mark.parametrize(
    "fields",
    [
        {"roots": "NllLoss mean"},  # one gradient for each task, all kept elsewhere (PCGrad, MAML): nobody divides
        {"synced": 4, "unsynced": 0},  # each averaged: steps of several optimizers
        {"flags": UpdateFlag.DIGESTED | UpdateFlag.CLEARED},  # several losses from several lines
        {"flags": UpdateFlag.DIGESTED | UpdateFlag.ONE_LINE},  # nothing was zeroed on the way
    ],
)
def test_other_programs_that_zero_between_backward_passes_are_left_in_peace(fields: dict[str, Any]) -> None:
    assert found(**fields) == []
