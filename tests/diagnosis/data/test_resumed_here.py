"""A training that goes on within its process: in which order does its new sampler deal out the epoch under way?"""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY, Finding
from distdoctor.recording.trace.events import Saving, StateLoaded
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


SAMPLER = """class Resumable(Sampler):
    def __iter__(self):
        order = permuted(self.length)[self.consumed :]
        return iter(order[self.rank :: self.world])
"""


def drawn(skipped: int, *, saved_at: int = 2, epoch: int = 1) -> list[Finding]:
    """Each rank draws 48 of its 100 samples of epoch 1; the training that goes on skips some of all, then deals out the rest."""
    first = {rank: share(200, 2, rank) for rank in range(2)}
    job = sampled_job(ranks=2, length=200)
    job.train(epoch=0, orders=first, epoch_told=0, set_epoch_calls=1, sampler="Resumable")
    whole = [share(200, 2, rank, epoch=1) for rank in range(2)]
    order = [sample for pair in zip(*whole, strict=True) for sample in pair]
    parts = {rank: order[rank:96:2] for rank in range(2)}
    job.train(epoch=1, orders=parts, epoch_told=1, set_epoch_calls=2, running=True, sampler="Resumable", first_step=1)
    job.logs[0].note(Saving("/job/state.pt", "torch.save", saved_at))
    for log in job.logs:
        log.note(StateLoaded("optimizer", ("AdamW",), own=4), site="train.py:20 load")
    rest = {rank: (order[skipped + rank :: 2] if epoch else first[rank][skipped // 2 :]) for rank in range(2)}
    job.train(
        epoch=1,
        orders=rest,
        epoch_told=epoch,
        set_epoch_calls=1,
        optimizer=2,
        sampler="Resumable",
        first_step=2,
        set_epoch_site="train.py:17 begin",
    )
    found = examine(job.recording(sources={"/job/train.py": SAMPLER}), CHECKS.values()).findings
    return [one for one in found if one.code == "DD704"]


def test_samples_that_come_again_since_too_few_were_skipped_are_told_where_the_shares_are_dealt() -> None:
    (finding,) = drawn(skipped=48)

    assert (finding.ranks, finding.confidence, finding.place.line) == ((0, 1), LIKELY, 4)
    assert finding.title == "48 samples of epoch 1 repeat after the resume: 96 were drawn of it before, and 152 since"


def test_what_is_left_of_an_epoch_in_the_order_of_another_is_told_with_the_epoch_that_was_told() -> None:
    (finding,) = drawn(skipped=96, epoch=0)

    assert (finding.place.line, finding.places[0].role) == (17, "was told epoch 0")
    assert finding.title.endswith(
        "samples of epoch 1 repeat after the resume: 96 were drawn of it before, and 104 since"
    )


@pytest.mark.parametrize(
    ("skipped", "saved_at"),
    [
        pytest.param(96, 2, id="all that were drawn are skipped"),
        pytest.param(0, 2, id="the epoch begins anew, or is read past"),
        pytest.param(48, 1, id="it goes on from an earlier save"),
    ],
)
def test_an_epoch_that_goes_on_with_what_is_left_is_fine(skipped: int, saved_at: int) -> None:
    assert drawn(skipped, saved_at=saved_at) == []
