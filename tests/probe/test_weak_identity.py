"""What is remembered of an object is forgotten when it has gone, and nothing runs at that moment."""

from __future__ import annotations

from distdoctor.probe.weak_identity import FEWEST, ByIdentity


class Thing:
    __hash__ = None  # type: ignore[assignment]


def test_an_object_is_known_while_it_lives_and_the_gone_do_not_pile_up() -> None:
    known: ByIdentity[int] = ByIdentity()
    kept = [Thing() for _ in range(FEWEST)]
    for number, thing in enumerate(kept):
        known.set(thing, number)
    for _ in range(100 * FEWEST):
        known.set(Thing(), -1)

    assert [known.get(thing) for thing in kept] == list(range(FEWEST))
    assert known.get(Thing()) is None
    assert len(known) <= 2 * FEWEST + 1


def test_what_cannot_be_referred_to_weakly_is_not_remembered() -> None:
    known: ByIdentity[int] = ByIdentity()

    known.set(7, 1)

    assert known.get(7) is None
