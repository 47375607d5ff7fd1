"""Random SPMD programs over several groups with point to point: one planted fault is found, and no fault is silence."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from inner_loop import drawn
from programs import EXPLAINED_BY, FAULTS, judged, program

from distdoctor.testing import SimulatedJob, recording
from distdoctor.testing.rank_trace import SECOND

patient = settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
seeds = st.integers(0, 1 << 30)


def played(seed: int, ranks: int, fault: str, culprit: int) -> SimulatedJob:
    """A film in which the fault does harm."""
    script = program(seed, ranks, fault=fault, culprit=culprit)
    assume(script is not None)
    assert script is not None
    film: SimulatedJob = script.film(random.Random(seed), exits=True)
    everybody_is_through = all(runner.end is not None for runner in film.runners.values())
    assume(fault in ("reduction", "raise") or not everybody_is_through)
    return film


@patient
@given(seeds, st.integers(2, 8), st.data())
def test_a_healthy_job_is_silent_at_every_moment_whatever_the_moments_at_which_its_ranks_are_read(
    seed: int, ranks: int, data: st.DataObject
) -> None:
    script = program(seed, ranks)
    assert script is not None
    film = script.film(random.Random(seed), exits=True, rendezvous=data.draw(st.booleans()))
    now = data.draw(st.integers(0, len(film.moments) - 1))
    lags = data.draw(st.lists(st.integers(0, 20), min_size=ranks, max_size=ranks))
    at = {rank: film.moments[max(0, now - lag)] for rank, lag in enumerate(lags)}

    assert judged(film.read(at)) == []


@pytest.mark.parametrize("seed", drawn(3))
def test_a_healthy_job_is_silent_at_each_of_its_moments(seed: int) -> None:
    script = program(seed, 4, steps=3)
    assert script is not None
    film = script.film(random.Random(seed), exits=True)

    for moment in film.moments:
        assert judged(film.read(moment)) == []


@patient
@given(seeds, st.integers(2, 8))
def test_a_healthy_job_is_silent_after_its_end(seed: int, ranks: int) -> None:
    script = program(seed, ranks)
    assert script is not None

    assert judged(script.finished()) == []


@patient
@given(seeds, st.integers(2, 8), st.sampled_from(FAULTS), st.data())
def test_a_planted_fault_is_the_one_event_and_its_rank_the_culprit(
    seed: int, ranks: int, fault: str, data: st.DataObject
) -> None:
    culprit = data.draw(st.integers(0, ranks - 1))
    film = played(seed, ranks, fault, culprit)

    (event,) = judged(film.read(film.last_ns + 90 * SECOND))

    assert event.code in EXPLAINED_BY[fault]
    assert culprit in event.ranks
    assert event.is_tie or len(event.ranks) == 1 or event.code in ("DD108", "DD113")


@patient
@given(seeds, st.integers(2, 8), st.sampled_from(FAULTS), st.data())
def test_after_the_end_the_verdict_is_the_same(seed: int, ranks: int, fault: str, data: st.DataObject) -> None:
    film = played(seed, ranks, fault, data.draw(st.integers(0, ranks - 1)))
    (live,) = judged(film.read(film.last_ns + 90 * SECOND))
    film.end("killed", patience=90 * SECOND)

    (after,) = judged(film.read(film.last_ns + SECOND, running=False))

    assert (after.code, after.ranks) == (live.code, live.ranks)


@patient
@given(seeds, st.integers(2, 8), st.sampled_from(FAULTS), st.data())
def test_with_lost_logs_the_culprit_is_the_same_or_unknown(
    seed: int, ranks: int, fault: str, data: st.DataObject
) -> None:
    culprit = data.draw(st.integers(0, ranks - 1))
    film = played(seed, ranks, fault, culprit)
    lost = data.draw(st.integers(0, ranks - 1))
    whole = film.read(film.last_ns + 90 * SECOND)
    torn = replace(whole, ranks={rank: log for rank, log in whole.ranks.items() if rank != lost})

    for event in judged(torn):
        assert not event.ranks or culprit in event.ranks


@patient
@given(seeds, st.integers(2, 6), st.sampled_from(FAULTS), st.data())
def test_the_order_of_the_files_makes_no_difference(seed: int, ranks: int, fault: str, data: st.DataObject) -> None:
    film = played(seed, ranks, fault, data.draw(st.integers(0, ranks - 1)))
    found = film.read(film.last_ns + 90 * SECOND)
    order = data.draw(st.permutations(list(found.ranks)))
    shuffled = replace(found, ranks={rank: found.ranks[rank] for rank in order})

    assert [(e.code, e.ranks, e.is_tie) for e in judged(shuffled)] == [
        (e.code, e.ranks, e.is_tie) for e in judged(found)
    ]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_the_culprit_is_named_whichever_rank_it_is(ranks: int) -> None:
    for culprit in range(ranks):
        script = recording(ranks)
        for step in range(4):
            script.collective("all_reduce", [25600], native=True, site="train.py:41 step")
            if step == 2:
                script.skipped_by(culprit)
            script.collective("broadcast", [1], site="train.py:57 share").step()
        (event,) = judged(script.live())
        assert (event.code, event.ranks, event.is_tie) == ("DD101", (culprit,), False)


def test_a_call_too_many_among_equal_calls_is_not_blamed_on_the_rank_that_is_through() -> None:
    """All calls are barriers, so they meet whatever their lines are, until one rank has come to its end."""
    script = program(13517, 2, fault="extra", culprit=0)
    assert script is not None
    film = script.film(random.Random(13517), exits=True)

    (event,) = judged(film.read(film.last_ns + 90 * SECOND))

    assert (event.code, event.ranks) == ("DD101", (0,))
