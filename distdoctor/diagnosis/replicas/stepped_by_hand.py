"""Replicas of a script that steps by itself, without an optimizer of torch: a line search, hand-written descent.

Nobody tells the probe of its steps, so the weights are looked at before some backward passes. They are replicas where gradients
are summed over all ranks in each pass. Parts that some ranks keep for themselves stay beside weights that are equal; where
nothing that is trained is equal, and nothing becomes so again, the replicas have parted, or have never been the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.diagnosis.replicas.reduced_by_hand import reduced_in_each_turn
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.states import StateSnapshot
from distdoctor.recording.trace.state_file import START, WEIGHTS

LEAST_LOOKS = 3  # in which they differ, the last ones
A_NORM_BYTES = 9  # more than a norm of a weight's gradient takes, in double precision
START_PASS = 1  # the start is what was there before the first pass

_Weights = Mapping[str, str]


@dataclass(frozen=True)
class PartedByHand:
    """`since`: the backward pass before which they differ first; `until`: the one before which they were equal for the last time,
    0 where they never were. `odd`: the ranks that are not as most are; all where there is no majority."""

    streams: ClassVar[frozenset[str]] = frozenset({"checkpoints", "collectives"})
    ranks: tuple[int, ...]
    odd: tuple[int, ...]
    names: tuple[str, ...]
    until: int
    since: int
    last: int
    reduced: SourceLine

    @classmethod
    def of(cls, recording: Recording) -> Self:
        """NotApplicable: the script has optimizers, or its ranks are no replicas, or have not parted."""
        looks = {one.rank: _looks(one) for one in recording.states if one.document.when == START}
        if len(looks) < 2 or set(looks) != set(recording.ranks) or not all(len(own) > 1 for own in looks.values()):
            raise NotApplicable("no weights were looked at that a script changes by itself")
        common = sorted(set.intersection(*(set(own) for own in looks.values())))
        differ = [_differing([own[at] for own in looks.values()]) for at in common]
        trained = {
            name
            for own in looks.values()
            for name in own[common[0]]
            if own[common[-1]].get(name) != own[common[0]][name]
        }
        since = next((number for number, names in enumerate(differ) if names), len(common))
        whole = all(names == trained for names in differ[-LEAST_LOOKS:]) and all(differ[since:])
        if len(common) - since < LEAST_LOOKS or not whole:
            raise NotApplicable("the weights that the script changes by itself have not parted")
        passes, least_bytes = common[-1] - START_PASS, A_NORM_BYTES * len(trained)
        reduced = {reduced_in_each_turn(recording, rank, passes, least_bytes) for rank in recording.ranks}
        if len(reduced) > 1 or not (line := reduced.pop()):
            raise NotApplicable("gradients are not reduced in each backward pass")
        kinds = Counter(tuple(sorted(own[common[since]].items())) for own in looks.values())
        usual, most = kinds.most_common(1)[0]
        alike = usual if most * 2 > len(looks) else None
        odd = tuple(sorted(rank for rank, own in looks.items() if tuple(sorted(own[common[since]].items())) != alike))
        names = tuple(name for name in next(iter(looks.values()))[common[0]] if name in differ[since])
        if not names:
            raise NotApplicable("the ranks do not hold weights of the same names")
        return cls(tuple(sorted(looks)), odd, names, common[since - 1] if since else 0, common[since], common[-1], line)

    @property
    def is_tie(self) -> bool:
        """Whether no majority tells which of them is wrong."""
        return self.odd == self.ranks


def _looks(start: StateSnapshot) -> dict[int, _Weights]:
    """backward pass -> the weights before it, the start among them."""
    later: dict[int, _Weights] = {int(at): named for at, named in start.document.weights_at.items() if at.isdecimal()}
    held = set.intersection(*(set(named) for named in later.values())) if later else set[str]()
    first = {name: digest for name, digest in start.digests(WEIGHTS).items() if name in held}
    return {START_PASS: first, **later} if first else {}


def _differing(looks: Iterable[_Weights]) -> set[str]:
    """The names whose digests are not the same on all ranks."""
    rows = list(looks)
    return {name for row in rows for name in row if len({other.get(name, "") for other in rows}) > 1}
