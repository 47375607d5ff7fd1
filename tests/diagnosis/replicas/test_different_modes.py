"""Models that are switched between training and eval mode: for good, now and then, or more often than is noted."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import WARNING
from distdoctor.recording.trace.events import MOST_MODES, ModesSeen
from distdoctor.testing.gradients import STEP_LINE, trained_job

ON, OFF = (3, 0, False), (0, 3, True)


def told(*modes: tuple[int, int, bool], steps: int, differs_at: int = 0) -> list[tuple[str, tuple[int, ...]]]:
    """What is said of two ranks whose models are in these modes in their first steps, and as in the last of them from then on.
    Rank 1 is in another one in the step `differs_at`."""
    job = trained_job(2).initial()
    for rank, log in enumerate(job.logs):
        for step, mode in enumerate(modes, 1):
            mine = OFF if rank and step == differs_at else mode
            log.note(ModesSeen(1, step, *mine), site=STEP_LINE)
    for _ in range(steps):
        job.step()
    findings = examine(job.recording(), [PLUGINS.checks["DD223"]]).findings
    assert all(one.severity == WARNING for one in findings)
    return [(one.code, one.ranks) for one in findings]


def test_a_model_that_stays_in_eval_mode_is_told() -> None:
    assert told(ON, OFF, steps=6) == [("DD223", (0, 1))]


@pytest.mark.parametrize("modes", [(ON,), (OFF,), (ON, OFF, ON), (ON, OFF, ON, OFF), (ON, (2, 1, False))])
def test_one_that_is_switched_back_or_was_never_switched_is_not(modes: tuple[tuple[int, int, bool], ...]) -> None:
    assert told(*modes, steps=6) == []


def test_a_difference_in_one_step_is_none_that_lasts() -> None:
    assert told(ON, ON, ON, steps=6, differs_at=2) == []


def test_nothing_is_said_of_steps_behind_the_last_note_that_there_was_room_for() -> None:
    assert told(*[ON, OFF] * (MOST_MODES // 2), steps=MOST_MODES + 8, differs_at=MOST_MODES - 1) == []
