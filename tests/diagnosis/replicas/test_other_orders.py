"""Optimizers that hold the same parameters in another order on another rank."""

from __future__ import annotations

from sick import PLUGINS

from distdoctor.diagnosis.finding import Finding
from distdoctor.diagnosis.source.set_order import lists_in_set_order
from distdoctor.testing.gradients import PARAMETERS, TrainedJob, trained_job

SOURCE = """
def groups(model):
    decay, rest = set(), set()
    named = dict(model.named_parameters())
    first = sorted(name for name in decay)
    return [{"params": [named[name] for name in decay]}, {"params": [named[name] for name in rest]}, first]


def train(optimizer):
    optimizer.step()
"""
OTHER = {1: tuple(reversed(PARAMETERS))}


def told(job: TrainedJob) -> list[Finding]:
    recording = job.recording(sources={"/job/train.py": SOURCE})
    return [one for code in ("DD201", "DD202", "DD203", "DD205") for one in PLUGINS.checks[code].look(recording)]


def test_gradients_that_are_reduced_in_another_order_are_mixed_although_one_digest_of_them_all_agrees() -> None:
    (finding,) = told(trained_job(2, orders=OTHER, wrapped=False).initial().step().step())

    assert (finding.code, finding.ranks, finding.undecided) == ("DD202", (0, 1), False)
    assert (finding.place.line, finding.place.function) == (6, "groups")
    assert "`body.weight` on rank 0 and `head.weight` on rank 1" in finding.why
    assert finding.prescriptions[0].slug == "one-order-everywhere"


def test_replicas_whose_wrapper_reduces_by_name_are_equal_whatever_the_order() -> None:
    assert told(trained_job(2, orders=OTHER).initial().step().step()) == []


def test_what_is_sorted_or_no_set_is_in_order() -> None:
    lines = lists_in_set_order({"t.py": SOURCE}, "t.py")

    assert [(line.line, line.function) for line in lines] == [(6, "groups")]
    assert lists_in_set_order({"t.py": SOURCE.replace("set()", "[]")}, "t.py") == []
