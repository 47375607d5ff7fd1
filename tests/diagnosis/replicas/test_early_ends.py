"""Schedules that are over after one P-th of the training of P ranks."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.finding import LIKELY, WARNING, Finding
from distdoctor.testing.gradients import trained_job

SOURCE = """\
from accelerate import Accelerator
def train(accelerator, optimizer, loader, steps):
    schedule = {made}
    schedule = {prepared}
    for batch in loader:
        accelerator.backward(model(batch))
        optimizer.step()
        schedule.step()
"""
MADE = "CosineAnnealingLR(optimizer, T_max=steps)"
PREPARED = "accelerator.prepare(schedule)"


def cosine(turns: float) -> Callable[[float], float]:
    return lambda share: 1e-3 * (1 + math.cos(math.pi * turns * share)) / 2


def flat(end: float, left: float = 1e-7) -> Callable[[float], float]:
    return lambda share: max(left, 1e-3 * (1 - share / end))


def told(
    rate: Callable[[float], float], *, made: str = MADE, prepared: str = PREPARED, ranks: int = 2, skip: int = 0
) -> list[Finding]:
    job = trained_job(ranks).initial()
    for step in range(60):
        job.step(lr=rate(step / 60), skip=skip, site="train.py:7 train")
    source = SOURCE.format(made=made, prepared=prepared)
    return PLUGINS.checks["DD218"].look(job.recording(sources={"/job/train.py": source}))


@pytest.mark.parametrize(
    ("rate", "ranks"),
    [(cosine(2), 2), (cosine(4), 4), (flat(1 / 2), 2), (flat(1 / 4), 4)],
    ids=["2", "4", "flat", "flat 4"],
)
@pytest.mark.parametrize("skip", [0, 7])
def test_a_rate_that_is_lowest_at_the_pace_of_all_processes_is_told_where_the_schedule_is_prepared(
    rate: Callable[[float], float], ranks: int, skip: int
) -> None:
    (finding,) = told(rate, ranks=ranks, skip=skip)

    assert (finding.confidence, finding.severity, finding.ranks) == (LIKELY, WARNING, tuple(range(ranks)))
    assert finding.place is not None
    assert (finding.place.line, finding.prescriptions[0].slug) == (4, "as-long-as-the-training")
    assert ("rises again" in finding.title) is (rate(1 / ranks + 0.1) > 1e-5)


@pytest.mark.parametrize(
    ("made", "prepared"),
    [
        (MADE, "schedule"),
        (MADE, "Accelerator(split_batches=True).prepare(schedule)"),
        ("CosineAnnealingLR(optimizer, T_max=steps * accelerator.num_processes)", PREPARED),
        ("CosineAnnealingWarmRestarts(optimizer, steps)", PREPARED),
        ("get_scheduler('cosine', optimizer, 0, steps, num_cycles=2)", PREPARED),
    ],
)
def test_a_schedule_that_nothing_moves_for_all_processes_is_silent(made: str, prepared: str) -> None:
    assert told(cosine(2), made=made, prepared=prepared) == []


@pytest.mark.parametrize(
    ("rate", "ranks"),
    [
        (cosine(1), 2),  # as long as the training
        (cosine(2), 4),  # at another pace
        (cosine(3), 2),
        (lambda share: cosine(1)(2 * share % 1), 2),  # begins anew
        (flat(0.8), 2),
        (lambda share: 1e-3 if share < 0.5 else 1e-6, 2),  # one step down, as StepLR makes it
        (cosine(2), 1),
    ],
)
def test_rates_of_another_course_are_silent(rate: Callable[[float], float], ranks: int) -> None:
    assert told(rate, ranks=ranks) == []


def test_a_length_that_was_divided_by_the_number_of_processes_is_told() -> None:
    assert len(told(cosine(2), made="CosineAnnealingLR(optimizer, len(rows) // (8 * accelerator.num_processes))")) == 1
