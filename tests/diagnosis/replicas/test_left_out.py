"""Parameters without a gradient on every rank: DDP has not finished, and nobody has changed gradients behind its back."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.recording.trace.events import UncaughtException
from distdoctor.testing.gradients import trained_job

CHECKS = list(PLUGINS.checks.values())
RAISED = (
    "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. "
    "Parameter indices which did not receive grad for rank 0: 4"
)
NOBODY = {rank: ["head.weight"] for rank in range(2)}


@pytest.mark.parametrize(("finds_unused", "code"), [(False, "DD121"), (True, "DD202")])
def test_gradients_that_differ_beside_unused_parameters_are_the_reducers_where_it_waits_for_all(
    finds_unused: bool, code: str
) -> None:
    job = trained_job(2, finds_unused=finds_unused).initial().step()
    job.step(none=NOBODY, grads={1: 1}, params={1: 1}, names=["body.weight"])

    (finding,) = examine(job.recording(), CHECKS).findings

    assert (finding.code, finding.ranks) == (code, (0, 1))
    assert ("head.weight did not contribute to the loss" in finding.title) == (code == "DD121")


def test_parameters_that_nobody_uses_are_no_illness_as_long_as_the_rest_agrees() -> None:
    assert examine(trained_job(2).initial().step(none=NOBODY).step(none=NOBODY).recording(), CHECKS).findings == ()


def test_gradients_that_the_reducer_left_unaveraged_follow_from_what_it_raises() -> None:
    job = trained_job(2).initial().step()
    job.step(grads={1: 1}, params={1: 1}, none={0: ["head.weight"], 1: ["head.bias"]})
    job.note(UncaughtException((RAISED,)), site="train.py:31 train")

    assert [finding.code for finding in examine(job.recording(), CHECKS).findings] == ["DD121"]


@pytest.mark.parametrize(("unused", "code"), [(["head.weight"], "DD121"), ([], "DD101")])
def test_a_rank_that_left_parameters_out_alone_never_issued_the_reduction_that_the_other_waits_in(
    unused: list[str], code: str
) -> None:
    job = trained_job(2).initial()
    job.logs[0].call("all_reduce", [144], native=True, site="train.py:33 train", returned_ns=0)
    job.step(none={1: unused}, only=[1])
    job.logs[1].call("all_gather", [4], site="train.py:22 checksum", returned_ns=0)

    (finding,) = examine(job.recording(running=True), CHECKS).findings

    assert (finding.code, finding.ranks) == (code, (1,) if unused else (0, 1))
    assert ("head.weight did not contribute to the loss" in finding.title) == bool(unused)
