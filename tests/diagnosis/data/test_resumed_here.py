"""A training that goes on within its process: in which order does its new sampler deal out the epoch under way?"""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY, Finding
from distdoctor.recording.trace.events import StateLoaded
from distdoctor.testing.samples import sampled_job, share

CHECKS = PLUGINS.checks


def told(*, restored: bool = True, whole: bool = False, new_epoch: int = 0, calls: int = 0) -> list[Finding]:
    job = sampled_job(ranks=2, length=200).train(epoch=0, epoch_told=0, set_epoch_calls=1)
    parts = {rank: share(200, 2, rank, epoch=1)[: 100 if whole else 48] for rank in range(2)}
    job.train(epoch=1, orders=parts, epoch_told=1, set_epoch_calls=2, running=not whole)
    for log in job.logs if restored else ():
        log.note(StateLoaded("optimizer", ("AdamW",), own=4), site="train.py:20 load")
    job.train(epoch=new_epoch, epoch_told=new_epoch if calls else -1, set_epoch_calls=calls, optimizer=2)
    return [one for one in examine(job.recording(), CHECKS.values()).findings if one.code == "DD704"]


def test_the_order_of_an_epoch_that_was_over_is_told_with_the_sampler_that_was_told_nothing() -> None:
    (finding,) = told()

    assert (finding.ranks, finding.confidence) == ((0, 1), LIKELY)
    assert finding.title.startswith("epoch 1 goes on in the order of epoch 0")


@pytest.mark.parametrize(
    "about",
    [
        pytest.param({"new_epoch": 1, "calls": 1}, id="told the epoch"),
        pytest.param({"restored": False}, id="a new training"),
        pytest.param({"whole": True}, id="a second training behind the first"),
    ],
)
def test_what_goes_on_rightly_or_begins_anew_is_left_alone(about: dict[str, int]) -> None:
    assert not told(**about)  # type: ignore[arg-type]
