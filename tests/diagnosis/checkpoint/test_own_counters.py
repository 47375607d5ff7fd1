"""Counters of the user's own schedule and average: when they say that a piece of state was moved on twice, or forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.recording.trace.state_file import LR, POSITION, SCHEDULE, UPDATES
from distdoctor.testing.gradients import trained_job
from distdoctor.testing.states import snapshot

SOURCE = """class Average:
    def __init__(self):
        self.updates = self.seen = 0
    def update(self):
        self.updates += 1
        self.seen += 1
        decay = 1 / self.updates
"""
SAMPLES = f"{POSITION} WarmUp.samples"


def told(
    counter: str, saved: float, now: float, *, lr: float = 0.5, copies: str = "new", **numbers: float
) -> list[str]:
    """What is said of a run that goes on with the weights and moments of an earlier one, saved at step 20."""
    state = {"weights": {"w": "b"}, "moments": {"w": "m"}}
    first, then = ({f"{LR} 1": 1.0, counter: value, **numbers} for value in (0.0, saved))
    earlier = (
        snapshot("start", run="one", weights={"w": "a"}, copies={"EMA 1: w": "old"}, numbers=first),
        snapshot("save", run="one", step=20, copies={"EMA 1: w": "new"}, numbers=then, **state),
    )
    current = {**then, counter: now, f"{LR} 1": lr}
    start = snapshot("start", run="two", copies={"EMA 1: w": copies}, numbers=current, **state)
    recording = replace(
        trained_job(1).initial().step().recording(),
        states=(start,),
        earlier_states=earlier,
        sources={"/job/ema.py": SOURCE},
    )
    return [one.why for one in PLUGINS.checks["DD706"].look(recording)]


def test_a_schedule_that_is_twice_as_far_with_another_learning_rate_has_moved_twice() -> None:
    (why,) = told(SAMPLES, 640, 1280)
    assert "WarmUp.samples was 640 when it was saved, 1280 now" in why


@pytest.mark.parametrize(
    ("now", "about"),
    [(640, {}), (672, {}), (1280, {"lr": 1.0}), (1280, {f"{SCHEDULE} 1": 20.0})],
    ids=["as it was", "one step on", "the same learning rate", "torch's schedule tells"],
)
def test_one_that_is_where_it_was_or_by_which_nothing_changes_is_not(now: float, about: dict[str, float]) -> None:
    assert told(SAMPLES, 640, now, **about) == []


def test_the_counter_of_an_average_that_was_brought_back_begins_anew() -> None:
    (why,) = told(f"{UPDATES} Average.updates", 20, 0, lr=1.0)
    assert "Average.updates was 20 when it was saved, 0 now" in why


@pytest.mark.parametrize(("counter", "now"), [("Average.updates", 20), ("Average.updates", 3), ("Average.seen", 0)])
def test_one_that_was_restored_or_that_nobody_reads_is_left_alone(counter: str, now: float) -> None:
    assert told(f"{UPDATES} {counter}", 20, now, lr=1.0) == []


def test_of_an_average_that_is_another_the_average_is_told_and_not_its_counter() -> None:
    (why,) = told(f"{UPDATES} Average.updates", 20, 0, lr=1.0, copies="other")
    assert "Average.updates" not in why
