"""Parameters that a reduction by hand leaves out: they began equal, part in the first step and never meet again, while the same
ranks keep others of the same training equal.

Whether they were forgotten the bits do not tell: heads for tasks of their own look the same. So it is a sign that the program
itself made all of them equal at the start, or saves them on one rank for all, and a stronger one that what the reduction skips
is skipped for the form of its gradients, and that just those have that form; or for a word in its name, which is meant for
another part of the model, one that was each rank's own from the start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.facts.replicas import in_buckets
from distdoctor.diagnosis.replicas.gradients import OBSERVED, WRAPPER, Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.observed import Courses, ParameterCourse, courses, equal_sets
from distdoctor.diagnosis.replicas.rank_gradients import RankGradients, TensorInfo, Update
from distdoctor.diagnosis.replicas.reduced_by_hand import reduction_line
from distdoctor.diagnosis.replicas.reunion import weights_are_exchanged
from distdoctor.diagnosis.source.skipped_gradients import DIMENSIONS, DTYPE, LAYOUT, NAME, Skip, skip_of
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import Saving
from distdoctor.recording.trace.layout import Op

ENOUGH = 2  # parameters that the same ranks do keep equal


@dataclass(frozen=True)
class SkippedGradients:
    """What one optimizer holds of them. `kept`: how many parameters these ranks do keep equal; `skip`: None where the source
    shows no such condition, and the only sign is that the program broadcasts them at the start (`sent`), or that one rank saves
    for all."""

    peers: ReplicaGroup
    tensors: tuple[TensorInfo, ...]
    kept: int
    reduced: SourceLine
    skip: Skip | None
    update: Update
    sent: bool


@dataclass(frozen=True)
class LeftOutOfReduction:
    """All of them."""

    streams: ClassVar[frozenset[str]] = frozenset({"gradients", "collectives"})
    found: tuple[SkippedGradients, ...]

    @classmethod
    def of(cls, recording: Recording) -> Self:
        gradients = derived(Gradients, recording)
        if any(peers.by == WRAPPER for peers in gradients.peers):
            raise NotApplicable("a wrapper reduces the gradients")
        return cls(tuple(_found(gradients, recording)))


def _found(gradients: Gradients, recording: Recording) -> Iterator[SkippedGradients]:
    optimizers = sorted({update.optimizer for update in gradients.every_update()})
    known = {one: courses(gradients.ranks, one, _holders(gradients, one)) for one in optimizers}
    kept: dict[tuple[int, ...], list[tuple[int, str]]] = {}
    for optimizer, found in known.items():
        for ranks, names in equal_sets(found).items():
            kept.setdefault(ranks, []).extend((optimizer, name) for name in sorted(names))
    if not kept:
        return
    ranks = max(kept, key=lambda one: (len(one), len(kept[one])))
    if len(kept[ranks]) < ENOUGH:
        return
    for optimizer, found in known.items():
        names = frozenset(name for name, by_rank in found.items() if parts(by_rank, ranks))
        peers = ReplicaGroup(ranks, optimizer, OBSERVED, (), names)
        if names and not meets(gradients, peers) and not weights_are_exchanged(gradients, peers, 1):
            yield from _judged(gradients, recording, peers, kept[ranks], found)


def _judged(
    gradients: Gradients, recording: Recording, peers: ReplicaGroup, kept: list[tuple[int, str]], found: Courses
) -> Iterator[SkippedGradients]:
    own = gradients.ranks[peers.ranks[0]]
    apart = [info for name in sorted(peers.names) if (info := own.info(name, peers.optimizer)) is not None]
    others = [info for optimizer, name in kept if (info := own.info(name, optimizer)) is not None]
    reduced = reduction_line(gradients, peers)
    skip = skip_of(recording.sources, reduced) if reduced else None
    if skip is not None and skip.form == NAME:
        apart, skip = _caught_by_name(skip, apart, others, found, peers.ranks)
    elif skip is not None and not _has_that_form(skip.form, apart, others, found):
        skip = None
    sent = _were_all_sent(own, [*apart, *others])
    if skip is None and (recording.job.running or not (sent or some_save(recording))):
        return
    update = next(one for one in own.updates if one.optimizer == peers.optimizer and one.step)
    held = tuple(sorted(apart, key=lambda one: one.index))
    yield SkippedGradients(peers, held, len(others), reduced, skip, update, sent)


def some_save(recording: Recording) -> bool:
    """Whether some ranks save, and others do not: then it is one model that is saved."""
    saving = sum(1 for log in recording.ranks.values() if log.has_noted(Saving))
    return 0 < saving < len(recording.ranks)


def _holders(gradients: Gradients, optimizer: int) -> list[int]:
    return [r for r, own in gradients.ranks.items() if any(u.optimizer == optimizer for u in own.updates)]


def parts(by_rank: Mapping[int, ParameterCourse], ranks: tuple[int, ...]) -> bool:
    """Whether it began equal on these ranks, is trained, and has other bits after each of the first steps."""
    mine = [by_rank[rank] for rank in ranks if rank in by_rank]
    if len(mine) < len(ranks) or len({(one.shape, one.start) for one in mine}) > 1 or not all(c.moves for c in mine):
        return False
    return all(len(set(after)) > 1 for after in zip(*(one.params for one in mine), strict=True))


def meets(gradients: Gradients, peers: ReplicaGroup) -> bool:
    """Whether one of them is the same on all ranks again after a later step, or nobody has looked."""
    looks = [{u.step for u in gradients.ranks[rank].updates if u.optimizer == peers.optimizer and u.digested and u.step}
             for rank in peers.ranks]  # fmt: skip
    for step in set.intersection(*looks):
        rows = [gradients.ranks[rank].digests(step, peers.optimizer) for rank in peers.ranks]
        for name in peers.names:
            if all(name in row for row in rows) and len({int(row[name]["param"]) for row in rows}) == 1:
                return True
    return not set.intersection(*looks)


def _has_that_form(form: str, apart: list[TensorInfo], kept: list[TensorInfo], found: Courses) -> bool:
    """Whether the parameters that part differ in that form from those that are kept equal. A sparse gradient has no digest."""
    if form == LAYOUT:
        return not any(grad for one in apart for course in found[one.name].values() for grad in course.grads)
    if form == DIMENSIONS:
        return {one.shape.count(",") for one in apart}.isdisjoint(one.shape.count(",") for one in kept)
    if form == DTYPE:
        return {one.dtype for one in apart}.isdisjoint(one.dtype for one in kept)
    sizes, others = [one.numel for one in apart], [one.numel for one in kept]
    return max(sizes) < min(others) or min(sizes) > max(others)


def _caught_by_name(
    skip: Skip, apart: list[TensorInfo], kept: list[TensorInfo], found: Courses, ranks: tuple[int, ...]
) -> tuple[list[TensorInfo], Skip | None]:
    """Those of a part of the model in which nothing began differently, when the words were meant for another part where something
    did, and when they catch none of what is kept equal. Weights alone tell: scales and biases begin equal everywhere."""

    def part(name: str) -> str:  # the first module of its path that has one of the words in its name
        words = name.split(".")
        inside = (".".join(words[: n + 1]) for n in range(len(words)))
        return next((path for path in inside if any(word in path or word in f"{path}." for word in skip.words)), "")

    own = {part(name) for name, by_rank in found.items() if len({by_rank[r].start for r in ranks if r in by_rank}) > 1}
    alike = {part(one.name) for one in apart if one.shape.count(",")} - own - {""}
    if not own - {""} or not alike or any(part(one.name) for one in kept):
        return apart, None
    return [one for one in apart if part(one.name) in alike], skip


def _were_all_sent(own: RankGradients, tensors: Iterable[TensorInfo]) -> bool:
    """Whether this rank's broadcasts before the first step had the shapes of all of these, or carried as much as they hold."""
    calls = own.log.calls
    calls = calls[(calls["step"] == 0) & (calls["op"] == Op.BROADCAST)]
    sent, held = Counter(own.log.text(int(shape)) for shape in calls["shape"]), list(tensors)
    total = sum(one.numel for one in held)
    return Counter(one.shape for one in held) <= sent or f"[{total}]" in sent or in_buckets(sent) == total
