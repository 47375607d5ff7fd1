"""A schedule that is built anew and told how many steps were done before: its counter begins at 0, the rate goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.recording.trace.state_file import LR, SCHEDULE
from distdoctor.testing.gradients import trained_job
from distdoctor.testing.states import snapshot


def told(*rates: float, schedule: str = "LambdaLR") -> list[str]:
    """What is said of a run that goes on from step 20, with the learning rates of its first steps."""
    state = {"weights": {"w": "b"}, "moments": {"w": "m"}}

    def numbers(lr: float, position: float) -> dict[str, float]:
        return {f"{LR} 1": lr, f"{SCHEDULE} 1": position}

    earlier = (
        snapshot("start", run="one", weights={"w": "a"}, numbers=numbers(1.0, 0)),
        snapshot("save", run="one", step=20, numbers=numbers(0.5, 20), **state),
    )
    start = snapshot("start", run="two", numbers=numbers(rates[0], 0), schedule=schedule, **state)
    job = trained_job(1).initial()
    for lr in rates:
        job.step(lr=lr)
    recording = replace(job.recording(), states=(start,), earlier_states=earlier)
    return [one.why for one in PLUGINS.checks["DD706"].look(recording)]


def test_one_that_begins_anew_is_told_though_the_optimizer_has_brought_back_its_rate() -> None:
    (why,) = told(0.5, 0.98, 0.96)
    assert "step 20 when it was saved, 0 now" in why


def test_one_that_goes_on_with_the_rate_that_was_saved_is_not() -> None:
    assert told(0.5, 0.48, 0.46) == []


@pytest.mark.parametrize(
    ("rates", "schedule"),
    [((0.5, 0.5, 0.5), "LambdaLR"), ((0.5, 0.48, 0.46), "CosineAnnealingLR")],
    ids=["a rate that has not moved", "one that changes the rate that it finds"],
)
def test_a_rate_that_tells_nothing_acquits_nobody(rates: tuple[float, ...], schedule: str) -> None:
    assert told(*rates, schedule=schedule)
