"""Workers of a loader that keep more and more from epoch to epoch, and those that only fill a cache once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.finding import NOTE, POSSIBLE, Finding
from distdoctor.testing.memory import MIB, memory_job
from distdoctor.testing.samples import TRAIN_LOADER, sampled_job

CHECK = PLUGINS.checks["DD413"]


def found(
    held: Callable[[int, int], int], *, epochs: int = 4, workers: Callable[[int, int], int] | int = 2
) -> list[Finding]:
    """What is said about 80 steps in so many passes, in which the workers of each rank hold `held(rank, step)` bytes."""
    passes = sampled_job(2)
    for epoch in range(epochs):
        passes.train(epoch=epoch, workers=2)
    job = memory_job(2).trains(80, workers=workers, workers_rss=held)
    memory, samples = job.recording().ranks, passes.recording()
    ranks = {rank: replace(log, more={**log.more, **memory[rank].more}) for rank, log in samples.ranks.items()}
    return CHECK.look(replace(samples, ranks=ranks))


def test_workers_that_grow_through_all_epochs_are_told_with_their_loader() -> None:
    (finding,) = found(lambda rank, step: (300 + 2 * step) * MIB)

    assert finding.title == "the 2 workers of the loader grow by 2 MiB every step"
    assert (finding.ranks, finding.confidence, finding.place.short) == (
        (0, 1),
        POSSIBLE,
        TRAIN_LOADER.rpartition(" ")[0],
    )


@pytest.mark.parametrize(
    ("held", "epochs", "workers"),
    [
        (lambda rank, step: (300 + 8 * min(step, 20)) * MIB, 4, 2),  # a cache that is full after the first epoch
        (lambda rank, step: (300 + 2 * step) * MIB, 1, 2),  # the first epoch is not over, and it is little
        (
            lambda rank, step: int((300 + 160 * (1 - 0.5 ** (step / 20))) * MIB),
            4,
            2,
        ),  # each worker sees half of what is left
        (lambda rank, step: (300 + 2 * (step % 20)) * MIB, 4, 2),  # made anew for each epoch
        (lambda rank, step: (300 + step // 4) * MIB, 4, 2),  # little
        (lambda rank, step: (300 + 2 * step) * MIB, 4, lambda rank, step: 2 + step // 20),  # more and more of them
    ],
)
def test_what_levels_off_or_is_not_long_enough_is_not(
    held: Callable[[int, int], int], epochs: int, workers: Callable[[int, int], int] | int
) -> None:
    assert found(held, epochs=epochs, workers=workers) == []


def test_workers_that_double_within_the_first_epoch_are_a_note() -> None:
    """Whether a cache has a bound beyond it nobody knows yet."""
    (finding,) = found(lambda rank, step: (300 + 5 * step) * MIB, epochs=1)

    assert (finding.severity, finding.confidence) == (NOTE, POSSIBLE)
