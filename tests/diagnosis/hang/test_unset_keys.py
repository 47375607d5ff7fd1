"""Which rank has left out the key of a store that another one waits for, by the keys that were set before."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.hang.live.unset_keys import key_of_other_name, unset_key
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import KeyAwaited, KeySet
from distdoctor.testing.script import Script

SETS, WAITS = SourceLine("/job/train.py", 12, "report"), SourceLine("/job/train.py", 20, "merge")


def recorded(sets: dict[int, str], awaited: tuple[str, ...], *, over: bool = False, ranks: int = 3) -> Recording:
    """Rank 0 waits; the others have set these keys last."""
    job = Script(ranks).compute(0.1)
    for rank, key in sets.items():
        job.note(KeySet((key,)), rank, site=SETS)
    return job.note(KeyAwaited(awaited, over), 0, site=WAITS).finished()


@pytest.mark.parametrize(
    ("sets", "awaited", "expected"),
    [
        ({0: "hard/4/0", 1: "hard/4/1", 2: "hard/3/2"}, ("hard/4/0", "hard/4/1", "hard/4/2"), ("hard/4/2", (2,))),
        ({0: "epoch4/rank0", 1: "epoch4/rank1"}, ("epoch4/rank2",), ("epoch4/rank2", (2,))),  # it never set one
        ({1: "ready/short"}, ("ready/long",), ("ready/long", (1,))),
        ({1: "ready/short", 2: "ready/short"}, ("ready/long",), ("ready/long", (1, 2))),
        ({0: "ready/short", 1: "ready/short", 2: "ready/short"}, ("ready/long",), None),  # whoever of them
        ({0: "hard/4/0", 1: "hard/4/1", 2: "hard/5/2"}, ("hard/4/2",), None),  # it is past that one
        ({1: "ready/long"}, ("ready/long",), None),
        ({1: "loss"}, ("ready/long",), None),
        ({}, ("ready/long",), None),
    ],
)
def test_who_has_set_such_keys_before_has_left_out_this_one(
    sets: dict[int, str], awaited: tuple[str, ...], expected: tuple[str, tuple[int, ...]] | None
) -> None:
    found = unset_key(recorded(sets, awaited), 0, WAITS)

    assert (None if found is None else (found.key, found.ranks)) == expected


def test_a_wait_that_has_come_back_and_another_line_say_nothing() -> None:
    assert unset_key(recorded({1: "ready/short"}, ("ready/long",), over=True), 0, WAITS) is None
    assert unset_key(recorded({1: "ready/short"}, ("ready/long",)), 0, SETS) is None


@pytest.mark.parametrize(
    ("sets", "awaited", "expected"),
    [
        ({1: "packed/81f0b3e7/ready"}, "packed/5d2c90aa/ready", ("packed/81f0b3e7/ready", (1,))),
        ({1: "sync-1764402213", 2: "sync-1764402213"}, "sync-1764402218", ("sync-1764402213", (1, 2))),
        ({1: "packed/81f0b3e7/begun"}, "packed/5d2c90aa/ready", None),
        ({1: "done/000001"}, "done/ready", None),
        ({1: "step/12"}, "step/13", None),  # a later one comes, or has been left out
        ({1: "ready/short"}, "ready/long", None),
        ({1: "81f0b3e7"}, "5d2c90aa", None),  # anything
    ],
)
def test_who_has_set_the_key_by_another_name_is_named_with_both(
    sets: dict[int, str], awaited: str, expected: tuple[str, tuple[int, ...]] | None
) -> None:
    found = key_of_other_name(recorded(sets, (awaited,)), 0, WAITS)

    assert (None if found is None else (found.instead, found.ranks)) == expected


def test_a_key_that_somebody_has_asked_for_is_no_other_name_of_the_awaited_one() -> None:
    """A barrier by keys: each waits for what the other one has set."""
    job = Script(3).compute(0.1).note(KeySet(("met/81f0b3e7",)), 1, site=SETS)
    job.note(KeyAwaited(("met/81f0b3e7",), over=True), 2, site=WAITS)
    asked = job.note(KeyAwaited(("met/5d2c90aa",), over=False), 0, site=WAITS).finished()

    assert key_of_other_name(asked, 0, WAITS) is None
