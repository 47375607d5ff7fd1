"""Which ranks have not set the key of a store that another one waits for: those that have set such keys before, or have set it
under another name.

`ready/long` after `ready/short`, which rank 0 alone sets; `hard/4/2` after `hard/3/2`, where the last number is the rank's;
`packed/5d2c90aa/ready` where `packed/81f0b3e7/ready` is awaited, both made from what differs between the processes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import KeyAwaited, KeySet

Words = tuple[str, ...]
_WORD = re.compile(r"[0-9]+|[A-Za-z]+")
_PART = re.compile(r"[^0-9A-Za-z]+")
WORKED_OUT = 6  # characters with a digit among them: a hash, a time, a number of a process; steps and ranks are shorter


@dataclass(frozen=True)
class UnsetKey:
    """A key that `ranks` have not set; where they, or else others, have set such a key, and which was the last one."""

    key: str
    ranks: tuple[int, ...]
    set_at: SourceLine
    last: str


@dataclass(frozen=True)
class OtherName:
    """A key that is awaited, and the one that `ranks` have set at `set_at` instead, for which nobody waits."""

    key: str
    instead: str
    ranks: tuple[int, ...]
    set_at: SourceLine


def unset_key(recording: Recording, rank: int, site: SourceLine) -> UnsetKey | None:
    """The first key that a rank awaits at a line and that a rank has left out; None where the record does not tell which."""
    log = recording.ranks.get(rank)
    waits = [one for one in log.noted(KeyAwaited) if not one.over] if log is not None else []
    keys = [key for one in waits if (one.site.path, one.site.line) == (site.path, site.line) for key in one.keys]
    known = {number: list(_keys_set(recording, number)) for number in sorted(recording.ranks)}
    already = {key for found in known.values() for key, _ in found}
    for key in keys:
        found = _left_out(key, known, rank) if key not in already else None
        if found is not None:
            return found
    return None


def key_of_other_name(recording: Recording, rank: int, site: SourceLine) -> OtherName | None:
    """What others have set in place of the key that a rank awaits at a line: the same words but for one that looks worked out."""
    waits = [wait for log in recording.ranks.values() for wait in log.noted(KeyAwaited)]
    asked = {key for wait in waits for key in wait.keys}
    known = {number: [one for one in _keys_set(recording, number) if one[0] not in asked] for number in recording.ranks}
    log = recording.ranks.get(rank)
    own = [wait for wait in log.noted(KeyAwaited) if not wait.over] if log is not None else []
    there = (wait for wait in own if (wait.site.path, wait.site.line) == (site.path, site.line))
    for key in (key for wait in there for key in wait.keys):
        alike = {
            number: found[-1]
            for number, keys in sorted(known.items())
            if number != rank and (found := [one for one in keys if _is_other_name(one[0], key)])
        }
        if alike:
            instead, set_at = next(iter(alike.values()))
            return OtherName(key, instead, tuple(number for number, one in alike.items() if one[0] == instead), set_at)
    return None


def _is_other_name(one: str, other: str) -> bool:
    """Whether they have as many words, more than one, and differ in one that looks worked out in both."""
    mine, theirs = _PART.split(one), _PART.split(other)
    if len(mine) != len(theirs) or len(mine) < 2:
        return False
    differ = [pair for pair in zip(mine, theirs, strict=True) if pair[0] != pair[1]]
    return len(differ) == 1 and all(len(part) >= WORKED_OUT and any(map(str.isdigit, part)) for part in differ[0])


def _keys_set(recording: Recording, rank: int) -> Iterator[tuple[str, SourceLine]]:
    for event in recording.ranks[rank].noted(KeySet):
        yield from ((key, event.site) for key in event.keys)


def _left_out(key: str, known: Mapping[int, Sequence[tuple[str, SourceLine]]], waiting: int) -> UnsetKey | None:
    words = _words(key)
    alike = {
        rank: [(one, site) for one, site in found if _is_such(_words(one), words)] for rank, found in known.items()
    }
    alike = {rank: found for rank, found in alike.items() if found}
    if not alike:
        return None
    at = _place_of_rank(alike, len(words))
    named = [words[at]] if at is not None and words[at].isdigit() else alike
    ranks = tuple(sorted(map(int, named)))
    if waiting in ranks or len(ranks) == len(known):
        return None
    last, set_at = alike.get(ranks[0], next(iter(alike.values())))[-1]
    has_gone_past = ranks[0] in alike and any(
        one.isdigit() and other.isdigit() and int(one) > int(other)
        for one, other in zip(_words(last), words, strict=True)
    )
    return None if has_gone_past else UnsetKey(key, ranks, set_at, last if ranks[0] in alike else "")


def _words(key: str) -> Words:
    return tuple(_WORD.findall(key))


def _is_such(one: Words, other: Words) -> bool:
    """Whether two keys are made in one way: as many words, and the same letters but for one word."""
    if len(one) != len(other):
        return False
    differ = [a for a, b in zip(one, other, strict=True) if a != b and not (a.isdigit() and b.isdigit())]
    return len(differ) <= (len(one) > 1)


def _place_of_rank(alike: Mapping[int, Sequence[tuple[str, SourceLine]]], length: int) -> int | None:
    """Which word of such keys is the number of the rank that sets them; None where none is, or one rank alone sets them."""
    if len(alike) < 2:
        return None
    for at in range(length):
        if all(_words(key)[at] == str(rank) for rank, found in alike.items() for key, _ in found):
            return at
    return None
