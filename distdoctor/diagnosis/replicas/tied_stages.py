"""A weight that several stages of a pipeline hold, as a table for words at both ends, and that each of them trains for itself.

That it is one weight the start tells: the same name, shape and bits, where other weights of one name and shape begin apart on
these stages, each with random numbers of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.observed import ParameterCourse, courses
from distdoctor.diagnosis.replicas.pipeline_stages import is_fed

LEAST_APART = 2  # weights that begin apart on the same ranks


@dataclass(frozen=True)
class TiedWeight:
    """A weight with the ranks that hold it, and how many others of one name began apart on these."""

    name: str
    ranks: tuple[int, ...]
    begun_apart: int


def tied_weights(gradients: Gradients, optimizer: int, holders: Sequence[int]) -> Iterator[TiedWeight]:
    """Those that are not kept equal from their first step on."""
    fed = {rank for rank in holders if is_fed(gradients, optimizer, rank)}
    found = courses(gradients.ranks, optimizer, holders, by_messages=True) if fed else {}
    for name, by_rank in found.items():
        for ranks in _begun_alike(by_rank):
            others = [_starts(other, ranks) for one, other in found.items() if one != name]
            apart = sum(len(set(starts)) > 1 for starts in others if starts)
            alike = sum(len(set(starts)) == 1 for starts in others if starts)
            mine = [by_rank[rank] for rank in ranks]
            if fed & {*ranks} and apart >= LEAST_APART and apart > alike and _parts_at_once(mine):
                yield TiedWeight(name, ranks, apart)


def _begun_alike(by_rank: Mapping[int, ParameterCourse]) -> list[tuple[int, ...]]:
    alike: dict[tuple[str, int], list[int]] = defaultdict(list)
    for rank, course in sorted(by_rank.items()):
        if _is_a_weight(course):
            alike[course.shape, course.start].append(rank)
    return [tuple(ranks) for ranks in alike.values() if len(ranks) > 1]


def _starts(by_rank: Mapping[int, ParameterCourse], ranks: tuple[int, ...]) -> list[int]:
    """What a weight begins as on these ranks; [] where one has none, or it has another shape there."""
    own = [by_rank[rank] for rank in ranks if rank in by_rank]
    same = len(own) == len(ranks) and len({course.shape for course in own}) == 1
    return [course.start for course in own] if same and all(map(_is_a_weight, own)) else []


def _is_a_weight(course: ParameterCourse) -> bool:
    """Whether it has two dimensions or more: norms and biases begin as ones and zeros everywhere."""
    return "," in course.shape and not course.owner.endswith("Norm")


def _parts_at_once(mine: list[ParameterCourse]) -> bool:
    together = range(len(mine[0].params))
    return all(all(course.grads) for course in mine) and all(
        len({course.grads[at] for course in mine}) > 1 and len({course.params[at] for course in mine}) > 1
        for at in together
    )
