"""What the samples stream writes is what the loaders handed over, in real ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jobs import data as jobs

from distdoctor.diagnosis.data.sample_account import accounts
from distdoctor.diagnosis.data.samples import SampleOrders
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import Finding
from distdoctor.plugins import load
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import PassFlag

pytestmark = pytest.mark.job


def found(recording: Recording) -> list[Finding]:
    """What the installed checks on data say."""
    checks = [check for check in load().checks.values() if check.code.startswith("DD3")]
    return list(examine(recording, checks).findings)


EXACT = [
    (jobs.never_told, {}),
    (jobs.never_told, {"workers": 2}),  # persistent
    (jobs.never_told, {"workers": 2, "batches": 3}),  # left by break, with batches on the way
    (jobs.ordinary, {"workers": 2, "drop_last": True}),
    (jobs.ordinary, {"length": 1}),  # fewer samples than ranks
    (jobs.made_anew, {"workers": 1}),
    (jobs.own_batches, {"endless": True}),
    (jobs.disjoint_subsets, {}),
    (jobs.weighted, {}),
    (jobs.unbatched, {}),
    (jobs.interleaved, {}),
    (jobs.bucketed, {}),
]


def test_exactly_what_was_handed_over_is_recorded() -> None:
    recording, handed = jobs.watched(jobs.one_after_the_other, trainings=EXACT, timeout=250)
    for rank, passes in SampleOrders.of(recording).by_rank.items():
        trained = [one for one in passes if one.flags & PassFlag.GRADIENTS_ON]
        seen = [[*map(int, one.indices), *map(int, one.padding)] for one in trained]
        assert seen == handed[rank]
        assert all(one.whole and one.keep_one_in == 1 for one in trained)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_torchdatas_loader_hands_over_is_recorded_also_when_its_state_is_restored(workers: int) -> None:
    pytest.importorskip("torchdata")
    recording, handed = jobs.watched(jobs.stateful, workers=workers)
    for rank, passes in SampleOrders.of(recording).by_rank.items():
        assert [[*map(int, one.indices), *map(int, one.padding)] for one in passes] == handed[rank]
        assert sorted([*handed[rank][1], *handed[rank][2]]) == sorted(set(handed[rank][1]) | set(handed[rank][2]))
        assert [one.exhausted for one in passes] == [True, False, True, True]
        assert all(one.flags & PassFlag.DISTRIBUTED_SAMPLER and one.shuffles for one in passes)
        assert [one.epoch_told for one in passes] == [0, 1, 1, 2]
    assert found(recording) == []


@pytest.mark.parametrize("about", [{}, {"workers": 2, "leaves": True}, {"split": True, "leaves": True}])
def test_of_accelerates_loaders_what_the_user_got_is_recorded_and_filling_up_is_no_overlap(
    about: dict[str, Any],
) -> None:
    pytest.importorskip("accelerate")
    recording, handed = jobs.watched(jobs.accelerated, **about)
    for rank, passes in SampleOrders.of(recording).by_rank.items():
        trained = [one for one in passes if one.trains]
        assert [[*map(int, one.indices), *map(int, one.padding)] for one in trained] == handed[rank]
        assert [one.num_replicas for one in trained] == [2] * len(trained)
        tested = [one for one in passes if one.evaluates]
        assert [(one.drawn, one.exhausted) for one in tested] == [(tested[0].drawn, True)] * 2
    trained_on, tested_on = (
        [one.epochs[0] for one in accounts(SampleOrders.of(recording)) if one.purpose == purpose]
        for purpose in ("trains", "evaluates")
    )
    for account, length in ((trained_on[0], 101), (tested_on[0], 21)):
        drawn = sum(share.drawn for share in account.shares)
        assert (account.shared, account.unseen) == (0, 0)
        assert sum(share.padding for share in account.shares) == drawn - length > 0
    assert found(recording) == []


def test_of_lightnings_loaders_every_sample_is_recorded() -> None:
    pytest.importorskip("lightning")
    recording, handed = jobs.watched(jobs.by_lightning)
    for rank, passes in SampleOrders.of(recording).by_rank.items():
        trained = [one for one in passes if one.trains]
        assert [[*map(int, one.indices), *map(int, one.padding)] for one in trained] == handed[rank]
        assert [one.epoch_told for one in trained] == [0, 1]
        assert all(one.read_all for one in passes if one.evaluates and one.number > 1)
    assert found(recording) == []


def test_a_loader_made_anew_every_epoch_keeps_its_number() -> None:
    recording, _ = jobs.watched(jobs.made_anew)
    for passes in SampleOrders.of(recording).by_rank.values():
        assert [(one.loader, one.number) for one in passes] == [(1, 1), (1, 2), (1, 3)]


def test_training_and_evaluation_are_told_apart() -> None:
    recording, _ = jobs.watched(jobs.ordinary)
    for passes in SampleOrders.of(recording).by_rank.values():
        assert [(one.loader, one.trains, one.evaluates) for one in passes] == [(1, True, False), (2, False, True)] * 3


def test_of_a_large_data_set_the_same_indices_are_kept_everywhere() -> None:
    recording, handed = jobs.watched(jobs.ordinary, length=120_000, batch_size=600)
    for rank, passes in SampleOrders.of(recording).by_rank.items():
        for one, drawn in zip([p for p in passes if p.trains], handed[rank], strict=True):
            assert one.keep_one_in == 4
            assert list(map(int, one.first)) == drawn[: len(one.first)]
            chosen = set(map(int, one.indices))
            assert list(map(int, one.indices)) == [index for index in drawn if index in chosen]
            assert 0.2 < len(chosen) / len(drawn) < 0.3
            assert one.whole
            everything = one.drawn_set
            assert everything is not None
            assert len(everything) == len(set(drawn))
            assert everything.holds(np.array(drawn, np.uint32)).all()


def test_where_no_disk_is_left_the_job_goes_on_and_the_account_says_that_it_is_an_estimate() -> None:
    recording, handed = jobs.watched(jobs.without_room)
    (training,) = [one for one in accounts(SampleOrders.of(recording)) if one.purpose == "trains"]
    for number, epoch in enumerate(training.epochs):
        assert [share.drawn for share in epoch.shares] == [len(drawn[number]) for drawn in handed]
        assert (epoch.keep_one_in, epoch.shared) == (4, 0)
    assert found(recording) == []


def test_keys_are_kept_as_digests_and_tensors_as_numbers() -> None:
    recording, handed = jobs.watched(jobs.odd_indices)
    for rank, passes in SampleOrders.of(recording).by_rank.items():
        keyed, tensors = passes
        assert keyed.flags & PassFlag.HASHED
        assert len(set(map(int, keyed.indices))) == 20
        assert list(map(int, tensors.indices)) == handed[rank][1]


@pytest.mark.parametrize("workers", [0, 2])
def test_iterable_data_are_counted_by_their_batches(workers: int) -> None:
    recording, handed = jobs.watched(jobs.streaming, workers=workers)
    for rank, passes in SampleOrders.of(recording).by_rank.items():
        assert [one.batches for one in passes] == [len(numbers) // 4 for numbers in handed[rank]]
        assert all(one.exhausted and one.trains and one.flags & PassFlag.ITERABLE for one in passes)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_passes_of_a_killed_rank_are_whole_up_to_the_last_batch(workers: int) -> None:
    recording = jobs.killed(jobs.killed_at_its_thirteenth_batch, workers=workers)
    for passes in SampleOrders.of(recording).by_rank.values():
        (one,) = passes
        assert (one.batches, one.drawn, one.whole, one.exhausted) == (13, 52, True, False)
        assert one.ahead == (0 if not workers else 4 * 2 * workers)


def test_losses_and_parameters_are_the_same_to_the_last_bit_with_and_without_the_stream() -> None:
    recording, watched = jobs.watched(jobs.everything_random)
    assert sum(len(passes) for passes in SampleOrders.of(recording).by_rank.values()) == 2 * 8
    assert watched == jobs.unwatched(jobs.everything_random)
