"""A resumed training that leaves out, in every epoch, the batches that it had done in the epoch in which it was interrupted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from distdoctor.diagnosis.data.samples import LoaderPass, SampleOrders
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.source.skipped_batches import skipping_test
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import Loading


@dataclass(frozen=True)
class SkippedAnew:
    """`epochs` passes of `batches` batches each train on no more than `trained` of them. `test` is what leaves out the others: a
    test, or a call."""

    one: LoaderPass
    ranks: tuple[int, ...]
    epochs: int
    batches: int
    trained: int
    test: str
    line: SourceLine
    bound: str


def skipped_anew(
    orders: SampleOrders, gradients: Gradients, recording: Recording, sources: Mapping[str, str]
) -> Iterator[SkippedAnew]:
    """The first such loop of each line, over all ranks whose passes are alike."""
    found: dict[tuple[str, int, int], list[SkippedAnew]] = defaultdict(list)
    for rank, passes in orders.by_rank.items():
        if any(True for _ in recording.ranks[rank].noted(Loading)):
            for one in _of_rank([each for each in passes if each.trains], gradients, sources):
                found[str(one.line), one.batches, one.trained].append(one)
    for same in found.values():
        first = same[0]
        ranks = tuple(sorted(each.one.rank for each in same))
        yield SkippedAnew(**{**vars(first), "ranks": ranks})


def _of_rank(passes: Sequence[LoaderPass], gradients: Gradients, sources: Mapping[str, str]) -> Iterator[SkippedAnew]:
    own = gradients.ranks.get(passes[0].rank) if passes else None
    backwards = {one.number("backwards") for one in own.updates if one.step} if own is not None else set()
    if len(backwards) != 1:
        return
    each = max(backwards.pop(), 1)  # batches that an optimizer step takes
    steps = [(one, other.first_step - one.first_step) for one, other in pairwise(passes) if _again(one, other)]
    if len(steps) < 2 or len({(one.batches, count) for one, count in steps}) > 1:
        return
    first, count = steps[0]
    left = skipping_test(sources, first.loop_line)
    if left is not None and (count + 1) * each <= first.batches:
        line, test, bound = left
        yield SkippedAnew(first, (first.rank,), len(steps), first.batches, count * each, test, line, bound)


def _again(one: LoaderPass, other: LoaderPass) -> bool:
    return one.exhausted and one.loop_line == other.loop_line and one.loader == other.loader
