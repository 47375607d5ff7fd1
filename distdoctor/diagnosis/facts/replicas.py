"""Which ranks are replicas of one another: they average their gradients, so they should read different samples.

Known from DistributedDataParallel and FSDP themselves; where gradients are averaged by hand, from collectives that have the
shapes of the gradients; or from the user's word, `distdoctor.watch(model)`. Nothing else is taken as proof: ranks of a tensor-,
pipeline- or context-parallel group have to read the same samples. So two ranks that also talk in a smaller group of their own, or
point to point, are not called replicas.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from distdoctor.diagnosis.facts.collectives import Members, members_of
from distdoctor.diagnosis.per_rank import PerRank
from distdoctor.diagnosis.source.reduced_gradients import reduces_gradients
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import RankTrace, Recording
from distdoctor.recording.trace.events import WATCHED, Averaging, FirstStep, Names
from distdoctor.recording.trace.layout import POINT_TO_POINT, CallFlag, Op

_WALKED = "check-data --loader"
"""It reads the loaders of a job in the place of the job, and takes all ranks for replicas."""
_BY_HAND = "all_reduce of every gradient by hand"
_PAIRWISE = [int(op) for op in POINT_TO_POINT]
_SILENT = [int(Op.BARRIER), int(Op.MONITORED_BARRIER)]
_ENOUGH = 0.9  # of the gradients' shapes have to be found among the collectives' sizes


@dataclass(frozen=True)
class ReplicaSet:
    """Ranks whose gradients are averaged. `by`: DistributedDataParallel, fully_shard, ... `proven`: it said so itself.

    `averaged` and `left`: of averages by hand, the shapes of optimizers' gradients that collectives have, and that none have.
    """

    ranks: tuple[int, ...]
    by: str
    proven: bool
    averaged: frozenset[Names] = frozenset()
    left: frozenset[Names] = frozenset()

    def averages(self, shapes: Iterable[str]) -> bool:
        """Whether it holds for an optimizer of parameters of these shapes: no other one's gradients are averaged in its place."""
        held = Counter(shapes)
        mine, others = (any(Counter(one) <= held for one in known) for known in (self.averaged, self.left))
        return mine or not others

    @property
    def words(self) -> str:
        """`DistributedDataParallel averages the gradients of ranks 0-3`."""
        if self.by == WATCHED:
            return f"{self.by} says that {named(self.ranks)} hold replicas"
        if self.by == _WALKED:
            return f"{self.by} reads for {named(self.ranks)} as for replicas"
        return f"{self.by} averages the gradients of {named(self.ranks)}"


@dataclass(frozen=True)
class Replicas:
    """The sets of replicas of a job; none when there is no proof of any."""

    streams: ClassVar[frozenset[str]] = frozenset({"samples", "collectives"})
    sets: tuple[ReplicaSet, ...]
    calls: Mapping[int, NDArray[np.int64]] = field(default_factory=dict, compare=False)  # of each rank, when: wall ns

    @classmethod
    def of(cls, recording: Recording) -> Self:
        told = list(_told(recording.ranks))
        wrapped = [one for one in told if one.by != WATCHED]
        sets = wrapped or list(_by_hand(recording)) or told
        private = _private_talk(recording.ranks, {frozenset(one.ranks) for one in sets})
        sets = [one for one in sets if not _talks_privately(one, private)]
        return cls(tuple(sets), PerRank(recording.ranks, lambda rank: _times(recording.ranks[rank])))

    def have_talked(self, rank: int, begin_ns: int, end_ns: int) -> bool:
        """Whether this rank may have exchanged anything in that time: False where all of it is on record, without a call. A model
        that trains meanwhile is no replica."""
        times = self.calls.get(rank)
        if times is None or not len(times):
            return True
        return bool(np.any((begin_ns <= times) & (times <= end_ns)))


def _times(log: RankTrace) -> NDArray[np.int64]:
    """When the calls were issued that carry more than objects. Empty where the first ones are no longer kept."""
    calls = log.calls
    if not len(calls) or int(calls["seq"][0]) > 1:
        return np.empty(0, np.int64)
    known = calls[~np.isin(calls["op"], _SILENT) & (calls["flags"] & CallFlag.OBJECT == 0)]
    times: NDArray[np.int64] = known["entered_ns"] + log.monotonic_to_wall_ns
    return times


def _told(logs: Mapping[int, RankTrace]) -> Iterable[ReplicaSet]:
    """From the wrappers. Groups of one wrapper that share a rank belong together (sharding x replicating)."""
    for by, groups in _events(logs).items():
        for ranks in _joined(groups):
            if len(ranks) > 1:
                yield ReplicaSet(tuple(sorted(ranks)), by, proven=True)


def _events(logs: Mapping[int, RankTrace]) -> dict[str, set[frozenset[int]]]:
    ranks: dict[str, dict[int, tuple[int, ...]]] = defaultdict(dict)
    for log in logs.values():
        for averaging in log.noted(Averaging):
            by = _WALKED if averaging.site.walks else averaging.by
            ranks[by][id(averaging.ranks)] = averaging.ranks  # equal texts are read as one value
    return {by: {*map(frozenset, of_text.values())} for by, of_text in ranks.items()}


def _joined(groups: Iterable[frozenset[int]]) -> list[set[int]]:
    """Sets that share a member become one."""
    joined: list[set[int]] = []
    for group in groups:
        touching = [known for known in joined if known & group]
        joined = [known for known in joined if not known & group]
        joined.append(set(group).union(*touching))
    return joined


def _by_hand(recording: Recording) -> Iterable[ReplicaSet]:
    """Groups in which every member's collectives have the shapes of its gradients (or their sum, when they are flattened)."""
    logs = recording.ranks
    members: dict[tuple[int, ...], dict[int, set[Names]]] = defaultdict(dict)
    every: set[Names] = set()
    for rank, log in logs.items():
        every.update(first.shapes for first in log.noted(FirstStep))
        for ranks, shapes in _averaging_groups(log, recording.sources):
            members[ranks].setdefault(rank, set()).update(shapes)
    for ranks, seen in members.items():
        if len(ranks) > 1 and seen.keys() >= set(ranks) & set(logs):
            averaged = frozenset().union(*seen.values())
            yield ReplicaSet(ranks, _BY_HAND, proven=False, averaged=averaged, left=frozenset(every - averaged))


def _averaging_groups(log: RankTrace, sources: Mapping[str, str]) -> Iterable[tuple[tuple[int, ...], set[Names]]]:
    """The members of each such group, and the shapes of the optimizers whose gradients go through it."""
    noted = list(log.noted(FirstStep))
    if not noted or not len(log.steps):
        return
    calls = calls_of_gradients(log, sources=sources)
    every, step = {first.shapes for first in noted}, _whole_step(calls)
    calls = calls[(calls["op"] == Op.ALL_REDUCE) & (calls["step"] == step) & (calls["flags"] & CallFlag.NATIVE == 0)]
    for group in np.unique(calls["group"]):
        found = Counter(log.text(int(call["shape"])) for call in calls[calls["group"] == group])
        flat = {one.shapes for one in noted if f"[{one.elements}]" in found or in_buckets(found) == one.elements}
        total = sum(one.elements for one in noted)
        if f"[{total}]" in found or in_buckets(found) == total:  # those of several optimizers in one
            flat = every
        if flat or _are_among([shape for first in noted for shape in first.shapes], found):
            yield (
                _members(log, int(group)).ranks,
                flat | {one for one in every - flat if _are_among(one, found)} or every,
            )


def in_buckets(found: Counter[str]) -> int:
    """How many numbers the flat calls carry together: gradients that are put into several buckets."""
    sizes = ((int(shape[1:-1]), count) for shape, count in found.items() if shape[1:-1].isdigit())
    return sum(size * count for size, count in sizes if size > 1)


def _are_among(shapes: Iterable[str], found: Counter[str]) -> bool:
    wanted = Counter(filter(None, shapes))
    matched = (found & wanted).total()
    return matched >= 2 and matched >= _ENOUGH * wanted.total()


def calls_of_gradients(
    log: RankTrace, *, began: str = "forward_ended_ns", sources: Mapping[str, str] | None = None
) -> NDArray[Any]:
    """The calls that a step's gradients may go through: an optimizer has stepped behind them, and its last backward had begun
    before, or by another time of the step (`backward_ended_ns`). Of a step with several passes also those before the last one
    that are given gradients, by their `sources`.

    What is sent between two steps, or when all of them are done, are the weights.
    """
    calls = log.calls[log.calls["step"] < int(log.steps["step"][-1])]
    times = log.rows("times")
    if not len(times) or not len(calls):
        return calls
    of_call = calls["step"].astype(np.int64) + 1
    at = np.minimum(np.searchsorted(times["step"].astype(np.int64), of_call), len(times) - 1)
    since = np.where(times["step"][at] == of_call, times[began][at], 0)
    late = calls["entered_ns"] >= since
    early = ~late & (times["step"][at] == of_call) & (times["backwards"][at] > 1)
    if not sources or not early.any():
        return calls[late]
    taking = [site for site in np.unique(calls["site"][early]) if reduces_gradients(sources, log.site(int(site)))]
    kept: NDArray[Any] = calls[late | (early & np.isin(calls["site"], taking))]
    return kept


def _whole_step(calls: NDArray[Any]) -> int:
    """One step is enough: the second, because building things up belongs to the first; of a long job, one that is still kept."""
    kept = np.unique(calls["step"])
    if 1 in kept or not len(kept):
        return 1
    return int(kept[0]) if kept[0] == 0 or len(kept) == 1 else int(kept[1])  # of the oldest, a part may be forgotten


def _members(log: RankTrace, group: int) -> Members:
    for row in log.groups:
        if int(row["key"]) == group:
            return members_of(log.text(int(row["members"])))
    return members_of("")


def _private_talk(logs: Mapping[int, RankTrace], sets: set[frozenset[int]]) -> set[frozenset[int]]:
    """Sets of ranks that talked among themselves while training: point to point, or in a group smaller than those that average
    and not one of them. Barriers and objects do not count: they carry no activations."""
    told = {ranks for groups in _events(logs).values() for ranks in groups}
    talk: set[frozenset[int]] = set()
    groups: set[frozenset[int]] = set()
    for rank, log in logs.items():
        calls = log.calls[(log.calls["step"] > 0) & ~np.isin(log.calls["op"], _SILENT)]
        calls = calls[calls["flags"] & CallFlag.OBJECT == 0]
        pairwise = np.isin(calls["op"], _PAIRWISE)
        talk |= {frozenset({rank, int(peer)}) for peer in np.unique(calls["root"][pairwise]) if peer >= 0}
        groups |= {_members(log, int(group)).known for group in np.unique(calls["group"][~pairwise])}
    return talk | {ranks for ranks in groups - told if len(ranks) > 1 and any(ranks < known for known in sets)}


def _talks_privately(one: ReplicaSet, private: set[frozenset[int]]) -> bool:
    ranks = frozenset(one.ranks)
    return any(len(talk & ranks) > 1 for talk in private)
