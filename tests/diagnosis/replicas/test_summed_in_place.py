"""A sum in place that the loss is computed from is told among replicas whose gradients are averaged, and among nobody else."""

from __future__ import annotations

from math import nan

from sick import PLUGINS

from distdoctor.diagnosis.finding import LIKELY, NOTE, WARNING, Finding
from distdoctor.recording.trace.events import Averaging, DetachedGather
from distdoctor.testing.gradients import trained_job


def told(ranks: tuple[int, ...], averaged: tuple[int, ...], by: str = "DistributedDataParallel") -> list[Finding]:
    """`ranks` were summed over; the gradients of `averaged` are averaged."""
    job = trained_job(4).initial()
    job.note(DetachedGather("all_reduce", True, 3, 4096, ranks), site="train.py:28 reduce_mean", only=ranks)
    if averaged:
        job.note(Averaging(averaged, by), site="train.py:14 main", only=averaged)
    return list(PLUGINS.checks["DD217"].look(job.step().step().recording()))


def test_a_sum_over_replicas_is_told_once_with_its_line() -> None:
    (finding,) = told((0, 1, 2, 3), (0, 1, 2, 3))

    assert (finding.severity, finding.confidence, finding.ranks) == (WARNING, LIKELY, (0, 1, 2, 3))
    assert (finding.place.line, finding.evidence["step"], finding.evidence["op"]) == (28, 3, "all_reduce")
    assert finding.title == (
        "step 3: all_reduce summed in place what requires a gradient, and the loss is computed from the sum: "
        "the gradient of the other ranks' losses is missing"
    )


def test_a_sum_among_ranks_that_do_not_average_their_gradients_is_not_told() -> None:
    assert told((0, 1), (0, 2)) == []  # tensor-parallel ranks, each with a replica
    assert told((0, 1, 2, 3), ()) == []


def told_of_losses(losses: list[float], only: bool = True) -> Finding:
    job = trained_job(2).initial()
    for rank, loss in enumerate(losses):
        summed = DetachedGather("all_reduce", True, 1, 4096, (0, 1), only, loss)
        job.note(summed, site="train.py:28 forward", only=(rank,))
    job.note(Averaging((0, 1), "DistributedDataParallel"), site="train.py:14 main")
    (finding,) = PLUGINS.checks["DD217"].look(job.step().step().recording())
    return finding


def test_one_loss_that_all_ranks_compute_from_the_sums_alone_is_a_note_about_its_scale() -> None:
    finding = told_of_losses([2.5, 2.5])

    assert (finding.severity, finding.confidence, finding.ranks, finding.place.line) == (NOTE, LIKELY, (0, 1), 28)
    assert finding.title == (
        "step 1: ranks 0-1 compute one loss from what all_reduce summed, and average their parts of its gradient: "
        "it is 2 times too small"
    )


def test_losses_that_differ_or_see_more_than_the_sums_or_are_not_known_miss_a_part_of_their_gradient() -> None:
    for finding in (told_of_losses([2.5, 2.6]), told_of_losses([2.5, 2.5], only=False), told_of_losses([nan, nan])):
        assert (finding.severity, finding.confidence) == (WARNING, LIKELY)
