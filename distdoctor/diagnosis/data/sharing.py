"""What replicas have in common that they should not: judged per set of passes that ranks made side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from distdoctor.diagnosis.data.samples import (
    LoaderPass,
    Overlap,
    SampleOrders,
    Together,
    common_start,
    overlap,
    repeats_within,
    same_order,
)
from distdoctor.diagnosis.facts.replicas import Replicas, ReplicaSet
from distdoctor.recording.recording import SourceLine
from distdoctor.recording.trace.layout import PassFlag

LEAST_DRAWS = 32
LEAST_DISTINCT = (
    16  # different samples among draws with replacement, so that a few heavy weights do not look like one order
)


@dataclass(frozen=True, eq=False)
class SameData:
    """Replicas that each draw everything, or exactly the same. `identical`: in the same order, so with the same gradients."""

    passes: Together
    replicas: ReplicaSet
    identical: bool
    draws: int

    @property
    def seen(self) -> bool:
        """The ranks' data sets were compared by content, not by class and length alone."""
        return self.passes.one.data.pieces > 0


def same_data(orders: SampleOrders, replicas: Replicas) -> Iterator[SameData]:
    """Sets of passes without any sharding sampler in which all replicas draw the whole data set, or the same draws."""
    for together in orders.together():
        for known in replicas.sets:
            found = _same_data(together.among(known.ranks), known)
            if found is not None and may_be_averaged(found.passes, replicas):
                yield found


def may_be_averaged(together: Together, replicas: Replicas) -> bool:
    """Beside the replicas a job may train a model on each rank alone, as a baseline: nothing is exchanged while it does.

    Nor is it while ranks evaluate.
    """
    passes = together.passes.items()
    return not together.trains or any(
        not one.ended_ns or replicas.have_talked(rank, one.started_ns, one.ended_ns) for rank, one in passes
    )


def _same_data(together: Together, replicas: ReplicaSet) -> SameData | None:
    passes = list(together.passes.values())
    if len(passes) < 2 or any(one.num_replicas > 1 or not one.comparable for one in passes) or not one_content(passes):
        return None
    identical = _identical(passes)
    if identical or all(_whole(one) for one in passes):
        return SameData(together, replicas, identical, min(one.drawn for one in passes))
    return None


def one_content(passes: Sequence[LoaderPass]) -> bool:
    """Whether the data sets of all these passes look the same."""
    return all(passes[0].data.same_content(one.data) for one in passes)


def _identical(passes: Sequence[LoaderPass]) -> bool:
    """Whether all drew the same in the same order, and enough to say so."""
    first = passes[0]
    for other in passes[1:]:
        n = common_start(first, other)
        over = first.exhausted and other.exhausted and first.drawn == other.drawn
        enough = n >= LEAST_DRAWS or (over and n == first.drawn and n > 0)
        if not enough or not same_order(first, other):
            return False
    distinct = len(np.unique(first.first))
    return distinct >= LEAST_DISTINCT or not first.flags & PassFlag.REPLACEMENT


def _whole(one: LoaderPass) -> bool:
    """Whether the pass draws its whole data set: by torch's own sampler, or because it has done so."""
    if one.flags & PassFlag.REPLACEMENT or one.drawn < min(LEAST_DRAWS, max(1, one.length)):
        return False
    if one.flags & PassFlag.TRANSLATED:
        return one.exhausted and one.whole and one.distinct == one.data.length
    if one.flags & PassFlag.WHOLE:
        return True
    return one.exhausted and one.whole and one.drawn == one.length and not repeats_within(one)


@dataclass(frozen=True, eq=False)
class Shared:
    """Samples that ranks share although their samplers, or their averaged gradients, say that they should not.

    `proven`: torch's own DistributedSamplers, whose shares never meet when they agree on everything. `differing`: what they
    do not agree on, as name -> rank -> value.
    """

    passes: Together
    overlap: Overlap
    proven: bool
    differing: dict[str, dict[int, object]]


def shared_samples(orders: SampleOrders, replicas: Replicas | None = None) -> Iterator[Shared]:
    """Overlaps in training passes. Samplers with replacement, padding and repeated augmentation are none."""
    anew = _drawn_anew(orders) if replicas is not None else frozenset()
    for together in orders.together():
        if together.trains:
            yield from _sharded(together)
            if replicas is not None and may_be_averaged(together, replicas):
                for known in replicas.sets:
                    mine = together.among(known.ranks)
                    if not any((rank, *_sampler_of(one)) in anew for rank, one in mine.passes.items()):
                        yield from _by_hand(mine)


def _usable(one: LoaderPass) -> bool:
    return one.comparable and not one.flags & PassFlag.REPLACEMENT and one.drawn > 0


def _sharded(together: Together) -> Iterator[Shared]:
    """Ranks whose samplers claim different shares of the same number of shares."""
    groups: dict[tuple[object, ...], dict[int, LoaderPass]] = defaultdict(dict)
    for rank, one in together.passes.items():
        if one.sharded and _usable(one) and not _repeats_on_purpose(one):
            groups[one.num_replicas, one.data.name, one.data.digest, one.data.length][rank] = one
    for members in groups.values():
        passes = list(members.values())
        if len({one.sampler_rank for one in passes}) < len(passes) or len(passes) < 2:
            continue  # two ranks claim the same share: on purpose in tensor parallel, and told elsewhere when it is not
        stock = all(one.flags & PassFlag.DISTRIBUTED_SAMPLER for one in passes)
        if not stock and any(repeats_within(one) for one in passes):
            continue
        yield from _found(Together(members), 0 if stock else _fair(passes), proven=stock)


def _by_hand(together: Together) -> Iterator[Shared]:
    """Replicas that shard in a way of their own: by Subsets, by samplers that do not say so."""
    passes = list(together.passes.values())
    if len(passes) < 2 or any(one.num_replicas > 1 or not _usable(one) for one in passes) or not one_content(passes):
        return
    if any(map(_repeats_on_purpose, passes)) or all(map(_draws_some, passes)):
        return
    if all(_whole(one) for one in passes) or _identical(passes):
        return  # that is a missing sampler, not an overlap
    yield from _found(together, _fair(passes), proven=False)


def _drawn_anew(orders: SampleOrders) -> frozenset[tuple[object, ...]]:
    """The samplers that give a rank a sample twice in some pass: they draw with replacement, and what two ranks have in common
    comes by chance."""
    return frozenset(
        (rank, *_sampler_of(one)) for rank, passes in orders.by_rank.items() for one in passes if repeats_within(one)
    )


def _sampler_of(one: LoaderPass) -> tuple[SourceLine, str]:
    return one.made_line, one.sampler_name


def _draws_some(one: LoaderPass) -> bool:
    """Whether torch's RandomSampler draws a part of the whole data set (num_samples), which each rank does independently."""
    return one.sampler_name == "RandomSampler" and not one.flags & (PassFlag.WHOLE | PassFlag.TRANSLATED)


def _fair(passes: Sequence[LoaderPass]) -> int:
    """How many draws of each rank can be expected to be disjoint: an equal share, without a last batch that may be padded.

    A sampler without end begins its second round after that.
    """
    length = max(passes[0].data.length, 0) or max(one.length for one in passes)
    share = length // len(passes)
    last = min(one.drawn for one in passes) - max(
        max(one.batch_size, -(-one.drawn // max(1, one.batches)), 1) for one in passes
    )
    return max(0, min(share, last))


def _found(together: Together, limit: int, *, proven: bool) -> Iterator[Shared]:
    passes = list(together.passes.values())
    if not proven and not limit:
        return
    common = overlap(passes, limit)
    if common.shared:
        yield Shared(together, common, proven, _differing(passes))


def _differing(passes: Sequence[LoaderPass]) -> dict[str, dict[int, object]]:
    """What samplers have to agree on and do not."""
    words = {
        "seed": "seed",
        "epoch_told": "epoch",
        "shuffles": "shuffle",
        "length": "length of the dataset",
        "subset": "Subset",
    }
    found: dict[str, dict[int, object]] = {}
    for name, word in words.items():
        values: dict[int, object] = {one.rank: getattr(one, name) for one in passes}
        if len(set(values.values())) > 1:
            found[word] = values
    return found


def _repeats_on_purpose(one: LoaderPass) -> bool:
    """Repeated augmentation hands the same sample to several ranks by design."""
    return "Repeat" in one.sampler or "RASampler" in one.sampler
