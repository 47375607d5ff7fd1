"""Replicas without a wrapper, known by their own evidence: the same name, shape and bits, and the same bits after each step.

Independent trials that start from one seed part in their first step; shards are not equal to begin with. What was equal on some
ranks and stays so while it is trained has been kept equal by somebody. So have gradients that are the same in every step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from distdoctor.diagnosis.replicas.rank_gradients import RankGradients
from distdoctor.recording.trace.layout import POINT_TO_POINT, Op, TensorFlag

STEPS = 3  # in which something has to stay equal
_SAYING_NOTHING = [int(op) for op in (*POINT_TO_POINT, Op.BARRIER, Op.MONITORED_BARRIER)]


@dataclass(frozen=True)
class ParameterCourse:
    """One parameter on one rank: its digest before the first step and after each of the first ones, and its gradients."""

    shape: str
    owner: str
    start: int
    params: tuple[int, ...]
    grads: tuple[int, ...]
    norms: tuple[float, ...]

    @property
    def moves(self) -> bool:
        return all(one != other for one, other in zip((self.start, *self.params), self.params, strict=False))

    @property
    def is_idle(self) -> bool:
        """Whether its gradients had no length: weight decay alone changes it, in the same way everywhere."""
        return not any(self.norms)


Courses = Mapping[str, Mapping[int, ParameterCourse]]  # name -> rank


def courses(
    ranks: Mapping[int, RankGradients],
    optimizer: int,
    holders: Iterable[int],
    wrapped: Container[tuple[int, ...]] = (),
    *,
    by_messages: bool = False,
) -> Courses:
    """What the first steps did to the parameters of which nothing tells who should agree, or only wrappers over the ranks in
    `wrapped`; {} where the holders did not talk in these steps, by collectives or, `by_messages`, in any way."""
    holders = sorted(holders)
    if len(holders) < 2 or not (by_messages or all(_talks(ranks[rank]) for rank in holders)):
        return {}
    steps = set.intersection(*({u.step for u in ranks[rank].updates if u.step and u.optimizer == optimizer and u.digested}
                               for rank in holders))  # fmt: skip
    first = sorted(steps)[:STEPS]
    if len(first) < STEPS:
        return {}
    found: dict[str, dict[int, ParameterCourse]] = defaultdict(dict)
    for rank in holders:
        for name, course in _courses_of(ranks[rank], optimizer, first, wrapped):
            found[name][rank] = course
    return found


def _courses_of(
    own: RankGradients, optimizer: int, steps: list[int], wrapped: Container[tuple[int, ...]]
) -> Iterator[tuple[str, ParameterCourse]]:
    start, *after = (own.digests(step, optimizer) for step in (0, *steps))
    for name, row in start.items():
        info = own.info(name, optimizer)
        if info is None or info.flags & TensorFlag.BUFFER or not all(name in rows for rows in after):
            continue
        if info.agree and info.agree not in wrapped:
            continue
        rows = [found[name] for found in after]
        params, grads = (tuple(int(one[key]) for one in rows) for key in ("param", "grad"))
        norms = tuple(float(one["norm"]) for one in rows)
        yield name, ParameterCourse(info.shape, info.owner, int(row["param"]), params, grads, norms)


def _talks(own: RankGradients) -> bool:
    calls = own.log.calls
    return int(((calls["step"] > 0) & ~np.isin(calls["op"], _SAYING_NOTHING)).sum()) >= 2


def equal_sets(found: Courses) -> dict[tuple[int, ...], frozenset[str]]:
    """Sets of ranks -> the parameters that these ranks hold as replicas of one another.

    Parameters that stay equal although the ranks step with other gradients count only where all do, as after weights are
    averaged: weight decay alone moves some alike on ranks that train apart, where their gradients are too small to show.
    """
    sets: dict[tuple[int, ...], set[str]] = defaultdict(set)
    doubtful: dict[tuple[int, ...], set[str]] = defaultdict(set)
    for name, by_rank in found.items():
        moving = {rank: course for rank, course in by_rank.items() if course.moves and not course.is_idle}
        for ranks in _together({rank: (c.shape, c.start, c.params) for rank, c in moving.items()}):
            alike = len({moving[rank].grads for rank in ranks}) == 1
            (sets if alike else doubtful)[ranks].add(name)
        for ranks in _together(
            {r: (c.shape, c.grads) for r, c in moving.items() if all(c.grads) and len({*c.grads}) == STEPS}
        ):
            sets[ranks].add(name)
    for ranks, names in doubtful.items():
        if not any(_part(by_rank, ranks) for by_rank in found.values()):
            sets[ranks] |= names
    return {ranks: frozenset(names) for ranks, names in sorted(sets.items())}


def _part(by_rank: Mapping[int, ParameterCourse], ranks: tuple[int, ...]) -> bool:
    """Whether these ranks begin with one value of a parameter and go on with several."""
    own = [by_rank[rank] for rank in ranks if rank in by_rank]
    return len(own) == len(ranks) and len({one.start for one in own}) == 1 < len({one.params for one in own})


def _together(values: Mapping[int, Hashable]) -> Iterator[tuple[int, ...]]:
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for rank, value in sorted(values.items()):
        alike[value].append(rank)
    yield from (tuple(ranks) for ranks in alike.values() if len(ranks) > 1)
