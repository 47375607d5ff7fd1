"""Process groups of the same ranks that are made again and again at one line, and never destroyed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from distdoctor.recording.recording import RankTrace, SourceLine
from distdoctor.recording.trace.events import GroupDestroyed, NewGroupBegun

LEAST = 12  # groups that are as good as one
LEAST_STEPS = 8  # in which they were made


@dataclass(frozen=True)
class PiledGroups:
    """`made` groups at a line, of so many different sets of ranks, in `steps` optimizer steps of a training of `of` steps."""

    site: SourceLine
    ranks: tuple[int, ...]
    made: int
    sets: int
    steps: int
    of: int
    at_ns: int

    @property
    def per_step(self) -> float:
        return self.made / self.of


def piled_groups(logs: Mapping[int, RankTrace]) -> list[PiledGroups]:
    """By line, the first rank's numbers with all ranks on which it is so."""
    found: dict[SourceLine, list[PiledGroups]] = defaultdict(list)
    for log in logs.values():
        for one in _of_rank(log):
            found[one.site].append(one)
    return [_together(alike) for _, alike in sorted(found.items(), key=lambda own: str(own[0]))]


def _together(alike: list[PiledGroups]) -> PiledGroups:
    first = alike[0]
    ranks = tuple(sorted(one.ranks[0] for one in alike))
    return PiledGroups(first.site, ranks, first.made, first.sets, first.steps, first.of, first.at_ns)


def _of_rank(log: RankTrace) -> Iterable[PiledGroups]:
    ends = np.asarray(log.steps["at_ns"], np.int64)
    destroyed = [event for event in log.noted(GroupDestroyed) if event.key]
    by_site: dict[SourceLine, list[NewGroupBegun]] = defaultdict(list)
    for event in log.noted(NewGroupBegun):
        if (
            event.done_ns > 0 and event.site and (not event.members or log.rank in event.members)
        ):  # else it holds nothing here
            by_site[event.site].append(event)
    for site, made in by_site.items():
        members = {event.members for event in made}
        steps = {int(np.searchsorted(ends, event.at_ns)) for event in made} - {0}  # 0: before the first step was over
        left = len(made) - len(destroyed)
        if left - len(members) >= LEAST and len(steps) >= LEAST_STEPS:
            at_ns = made[-1].at_ns + log.monotonic_to_wall_ns
            yield PiledGroups(site, (log.rank,), left, len(members), len(steps), len(ends), at_ns)
