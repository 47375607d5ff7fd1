"""Where a run goes on from an earlier one's save: samples that come again or are passed over, and orders that come again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY, Finding
from distdoctor.recording.recording import Recording
from distdoctor.testing.samples import SampledJob, sampled_job, share
from distdoctor.testing.states import snapshot

CHECKS = [PLUGINS.checks["DD704"]]
LENGTH = 64
Orders = Mapping[int, Sequence[int]]


def orders(epoch: int, *, of: int = 2, begin: int = 0, end: int | None = None) -> dict[int, list[int]]:
    """The part of that epoch from one draw of each rank to another."""
    return {rank: share(LENGTH, of, rank, epoch=epoch)[begin:end] for rank in range(of)}


def earlier(*epochs: Orders) -> SampledJob:
    """A job that made these passes, four steps in each."""
    job = sampled_job(2, LENGTH)
    for one in epochs:
        job.train(orders=one)
    return job


def gone_on(before: SampledJob, now: SampledJob, *, step: int, moments: bool = True) -> Recording:
    """The recording of `now`, which began with what `before` had saved after this step."""
    kept = {"head.weight": "m"} if moments else {}
    saved = snapshot("save", run="one", step=step, weights={"head.weight": "b"}, moments={"head.weight": "m"})
    first = snapshot("start", run="one", weights={"head.weight": "a"})
    start = snapshot("start", run="two", weights={"head.weight": "b"}, moments=kept)
    runs = {"one": before.recording()}
    return replace(now.recording(), states=(start,), earlier_states=(first, saved), earlier_runs=runs)


def found(recording: Recording) -> list[Finding]:
    diagnosis = examine(recording, CHECKS)
    assert [one for one in diagnosis.not_examined if "failed" in one.reason] == []
    return list(diagnosis.findings)


HALF = earlier(orders(0), orders(1, end=16))  # eight steps, and half of the second epoch


def test_an_epoch_that_begins_again_after_a_save_in_its_midst_is_told() -> None:
    (one,) = found(gone_on(HALF, earlier(orders(1), orders(2)), step=8))
    assert one.confidence == LIKELY
    assert one.title.startswith(
        "32 samples repeat after the resume at step 8: the resumed job restarts epoch 1 from its first sample"
    )


def test_another_order_of_the_whole_epoch_repeats_what_was_drawn() -> None:
    (one,) = found(gone_on(HALF, earlier(orders(7)), step=8))
    assert (
        "32 samples repeat after the resume at step 8: the resumed job does not continue epoch 1 where it stopped"
        in one.title
    )


def test_a_rest_that_is_cut_short_is_lost() -> None:
    half = earlier(orders(0), orders(1, end=8))
    (one,) = found(gone_on(half, earlier(orders(1, begin=20), orders(2)), step=8))
    assert "24 samples are lost" in one.title


def test_an_order_of_an_earlier_epoch_is_told_after_whole_epochs() -> None:
    (one,) = found(gone_on(earlier(orders(0), orders(1)), earlier(orders(0), orders(1)), step=8))
    assert one.title.endswith("after the resume at step 8: the resumed job repeats the order of epoch 0")


@pytest.mark.parametrize(
    ("before", "now", "step"),
    [
        (HALF, earlier(orders(1, begin=16), orders(2)), 8),
        (HALF, earlier(orders(1, begin=16)), 8),
        (earlier(orders(0), orders(1)), earlier(orders(2), orders(3)), 8),
        (earlier(orders(0)), earlier(orders(1)), 4),
        (earlier(orders(0), orders(0)), earlier(orders(0)), 8),  # the loader never shuffles, or DD301 says it
        (earlier(orders(0), orders(1)), earlier(orders(1, begin=16), orders(2)), 6),  # it went on after it had saved
        (
            earlier(orders(0, end=8), orders(1, end=8)),
            earlier(orders(2, end=8), orders(3, end=8)),
            8,
        ),  # ends by a count
    ],
    ids=["rest", "rest alone", "next epoch", "one epoch", "one order", "saved in the midst", "short epochs"],
)
def test_a_run_that_goes_on_where_the_other_had_been_is_silent(before: SampledJob, now: SampledJob, step: int) -> None:
    assert found(gone_on(before, now, step=step)) == []


@pytest.mark.parametrize(("begin", "silent"), [(16, True), (8, False)])
def test_at_another_world_size_what_all_ranks_drew_is_compared(begin: int, silent: bool) -> None:
    rest = sorted(set(range(LENGTH)) - {index for one in orders(1, end=begin).values() for index in one})
    now = sampled_job(4, LENGTH).train(
        orders={rank: rest[rank::4] for rank in range(4)}, num_replicas=0, sampler_rank=-1
    )
    assert (found(gone_on(HALF, now, step=8)) == []) is silent


def test_batches_that_are_read_and_passed_over_do_not_count() -> None:
    now = earlier(orders(1), orders(2))
    for log in now.logs:
        log.times(batches=5)
        log.times(batches=1)
    assert found(gone_on(HALF, now, step=8)) == []


def test_a_fresh_start_from_trained_weights_is_not_asked() -> None:
    assert found(gone_on(HALF, earlier(orders(0)), step=8, moments=False)) == []
