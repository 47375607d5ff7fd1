"""Dumps of several starts, or of several jobs, that lie together: the latest ones are examined, the others left aside whole.

The places tell: a folder, and a name without its rank. Hosts, whose folders hold different ranks, are parts of one start; places
that hold the same ranks, which end at other moments or are of jobs of different sizes, are not. Then what only the older one has,
as the dump of a rank that left none this time, is not this job's either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from distdoctor.recording.rank_set import named

_NUMBER = re.compile(r"\d+(?!.*\d)")


@dataclass(frozen=True)
class DumpSeen:
    """One dump, by what tells it from others: `last_ns` is the last moment in it, wall clock, `world` its largest group."""

    source: str
    rank: int
    last_ns: int
    world: int = 0

    @property
    def place(self) -> tuple[str, str]:
        """The folder, and the name without its last number."""
        folder, _, name = self.source.rpartition("/")
        return folder, _NUMBER.sub("", name, count=1)


@dataclass(frozen=True)
class OtherStart:
    """The dumps of a place that are of another start, job or moment than those that are examined."""

    dumps: tuple[DumpSeen, ...]
    why: str

    @property
    def words(self) -> str:
        folder, name = self.dumps[0].place
        ranks = named(dump.rank for dump in self.dumps)
        return (
            f"{folder or '.'}/{name}* ({ranks}) is of another start, job or moment, and was left aside: {self.why}; "
            "examine it by itself"
        )


def other_starts(dumps: Iterable[DumpSeen]) -> list[OtherStart]:
    """The places whose dumps are of another start, job or moment than the latest ones."""
    places: dict[tuple[str, str], list[DumpSeen]] = {}
    for dump in dumps:
        places.setdefault(dump.place, []).append(dump)
    latest_first = sorted(places.values(), key=lambda found: (-max(one.last_ns for one in found), found[0].source))
    kept: dict[int, DumpSeen] = {}
    left = []
    for found in latest_first:
        why = _why_another(found, kept)
        if why:
            left.append(OtherStart(tuple(sorted(found, key=lambda one: one.rank)), why))
        else:
            kept |= {one.rank: one for one in found if one.rank not in kept}
    return left


def _why_another(found: Sequence[DumpSeen], kept: dict[int, DumpSeen]) -> str:
    """What shows that these are of another start than those kept, in words; "" where they may be of the same."""
    twice = [(one, kept[one.rank]) for one in found if one.rank in kept]
    sizes = {(one.world, other.world) for one, other in twice if one.world and other.world}
    if any(mine != theirs for mine, theirs in sizes):
        mine, theirs = next(pair for pair in sorted(sizes) if pair[0] != pair[1])
        return f"it counts {mine} ranks, and the later one {theirs}"
    apart = [other.last_ns - one.last_ns for one, other in twice if one.last_ns and other.last_ns]
    if 2 * sum(difference != 0 for difference in apart) > len(apart):
        seconds = max(apart) / 1e9
        much = f"{seconds:.0f} s" if seconds >= 1 else "a moment"
        return f"it ends {much} before the dumps of the same ranks that are examined"
    return ""
