"""zero_grad between the micro-batches of one step: an accident where the window is declared, else a way of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.finding import LIKELY, NOTE, WARNING, Finding
from distdoctor.recording.trace.events import Cleared
from distdoctor.recording.trace.layout import UpdateFlag
from distdoctor.testing.gradients import trained_job
from distdoctor.testing.timing import LOOP_LINE, timed_job

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


IN_LOOP = "\n" * 27 + "for batch in loader:\n    optimizer.zero_grad()\n    step(batch)\n"
BEHIND = "\n" * 27 + "for batch in loader: step(batch)\noptimizer.zero_grad()\n"


def of_epochs(steps: int, *, passes: int = 3, flags: UpdateFlag = FLAGS, source: str = IN_LOOP) -> list[Finding]:
    """Epochs of so many steps of two micro-batches, of which the first follows one more: that of the epoch before."""
    job = timed_job(2)
    for epoch in range(4):
        for log in job.logs:
            log.loader_pass(loop_site=LOOP_LINE, started_ns=job.now[log.rank] + 1)
        first = (passes, flags) if epoch else (2, FLAGS & ~UpdateFlag.CLEARED)
        job.steps(1, micro_steps=first[0], flags=first[1])
        if epoch:
            job.job.note(Cleared(1, job.made), site="train.py:29 train")
        job.steps(steps - 1, micro_steps=2, flags=FLAGS & ~UpdateFlag.CLEARED)
    return PLUGINS.checks["DD208"].look(replace(job.recording(), sources={"/job/train.py": source}))


def test_a_window_that_the_end_of_each_epoch_cuts_short_is_told_by_how_much_of_the_epoch_it_is() -> None:
    (much,), (little,) = of_epochs(2), of_epochs(8)

    assert much.title.startswith("1 of 5 micro-batches of each epoch is thrown away")
    assert (much.severity, much.confidence, much.place.short) == (WARNING, LIKELY, "train.py:29")
    assert (little.severity, little.evidence["of_an_epoch"]) == (NOTE, 17)
    assert [one.severity for one in of_epochs(2, source=BEHIND)] == [NOTE]  # given up on purpose
    assert of_epochs(60) == []
    assert of_epochs(2, passes=2, flags=FLAGS & ~UpdateFlag.CLEARED) == []  # its last window is stepped with
