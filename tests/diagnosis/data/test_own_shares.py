"""What wrapped models are given, without a loader, tells whether the shares of ranks overlap."""

from __future__ import annotations

import numpy as np
import pytest

from distdoctor.diagnosis.data.own_shares import GivenSamples, own_shares, trailing
from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.facts.replicas import Replicas
from distdoctor.diagnosis.hang.uneven import uneven_passes
from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.trace.events import Averaging
from distdoctor.recording.trace.layout import PassFlag
from distdoctor.testing.rank_trace import TraceBuilder

GIVEN = PassFlag.GIVEN | PassFlag.ITERABLE | PassFlag.HASHED
SAMPLES = 2000


def given(by_rank: list[list[int]]) -> Recording:
    logs = [TraceBuilder(rank, world_size=len(by_rank)) for rank in range(len(by_rank))]
    for log, rows in zip(logs, by_rank, strict=True):
        log.note(Averaging(tuple(range(len(by_rank))), "DistributedDataParallel"))
        log.loader_pass(indices=rows, flags=GIVEN, loader=0, loop_site="train.py:30 train", ended_ns=0)
        log.step()
    return Recording(Job(world_size=len(by_rank)), {log.rank: log.build() for log in logs})


def epochs(rank: int, world: int, *, by: str) -> list[int]:
    random, found = np.random.default_rng(0 if by == "one order" else rank), list[int]()
    for _ in range(2):
        order = random.permutation(SAMPLES)
        if by == "replacement":
            order = random.integers(SAMPLES, size=SAMPLES)
        share = SAMPLES if by == "everything" else SAMPLES // world
        first = 0 if by == "everything" else rank * share
        found += order[first : first + share].tolist()
    return found


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("by", ["own orders", "one order", "replacement", "everything"])
def test_shares_of_own_orders_are_told_from_all_that_is_fine(world: int, by: str) -> None:
    recording = given([epochs(rank, world, by=by) for rank in range(world)])
    found = list(own_shares(derived(GivenSamples, recording), derived(Replicas, recording)))

    assert [one.replicas.ranks for one in found] == [tuple(range(world))] * (by == "own orders")


@pytest.mark.parametrize("world", [2, 3])
def test_shares_that_are_dealt_anew_in_each_epoch_and_come_again_late_are_not(world: int) -> None:
    """Each epoch begins with what other ranks had before: the first sample that comes again comes late."""
    parts = np.array_split(np.random.default_rng(0).permutation(SAMPLES), world)
    shares = [
        [*parts[rank], *parts[(rank + 1) % world][: SAMPLES // world * 3 // 5], parts[rank][0]] for rank in range(world)
    ]
    recording = given([[int(one) for one in share] for share in shares])

    assert list(own_shares(derived(GivenSamples, recording), derived(Replicas, recording))) == []


def test_an_epoch_that_is_not_over_tells_nothing() -> None:
    recording = given([epochs(rank, 2, by="own orders")[: SAMPLES // 2] for rank in range(2)])
    assert list(own_shares(derived(GivenSamples, recording), derived(Replicas, recording))) == []


def test_what_models_are_given_is_no_pass_over_a_loader() -> None:
    recording = given([[*range(40)], [*range(60)]])

    assert all(len(log.passes) == 1 and not len(log.loader_passes) for log in recording.ranks.values())
    assert uneven_passes(recording) == []


def in_order(rank: int, *, begins: int, steps: int, goes_on: int = 8, size: int = 1280) -> list[int]:
    """Batches of 8 windows from an offset on, round a file."""
    return [
        row % size
        for step in range(steps)
        for row in range(rank * begins + step * goes_on, rank * begins + step * goes_on + 8)
    ]


@pytest.mark.parametrize(
    ("world", "about", "expected"),
    [
        (2, {"begins": 8, "steps": 80}, (0, 1, 8)),  # each goes on by its own batch
        (4, {"begins": 8, "steps": 80}, (0, 1, 8)),
        (2, {"begins": 8, "steps": 80, "goes_on": 16}, None),
        (4, {"begins": 8, "steps": 40, "goes_on": 32}, None),
        (2, {"begins": 640, "steps": 160}, None),  # each reads everything, from another end
        (2, {"begins": 640, "steps": 80}, None),  # halves
        (2, {"begins": 0, "steps": 80}, None),  # the same batch for all: of no order of its own
    ],
)
def test_who_goes_over_the_data_right_behind_another_is_told(
    world: int, about: dict[str, int], expected: tuple[int, int, int] | None
) -> None:
    recording = given([in_order(rank, **about) for rank in range(world)])
    found = list(trailing(derived(GivenSamples, recording), derived(Replicas, recording)))

    assert [(one.rank, one.leader, one.lag) for one in found] == ([expected] if expected else [])
