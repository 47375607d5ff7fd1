"""Which rank has left out the key of a store that another one waits for, by the keys that were set before."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.hang.live.unset_keys import unset_key
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
