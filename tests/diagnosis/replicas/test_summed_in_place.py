"""A sum in place that the loss is computed from is told among replicas whose gradients are averaged, and among nobody else."""

from __future__ import annotations

from sick import PLUGINS

from distdoctor.diagnosis.finding import LIKELY, WARNING, Finding
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
