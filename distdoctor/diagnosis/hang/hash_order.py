"""Collectives of one line that each process issues in an order of its own, because it goes through a set of texts, or a dict
whose keys it has met in the order of its data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from distdoctor.diagnosis.facts.collectives import GroupCalls
from distdoctor.diagnosis.hang.alignment import SHAPE
from distdoctor.diagnosis.hang.group_making import Making
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.source.set_order import SetLoop, dict_loop_around, set_loop_around
from distdoctor.recording.recording import Call
from distdoctor.recording.trace.layout import CallFlag

HASHES = "text_hash"  # in the environment of each rank: equal where all share one hash seed
MOST_LINES = 64  # of one rank whose source is looked at


@dataclass(frozen=True)
class HashOrder:
    """A loop over a set, the first collective of its line, the ranks that go through it, and how often the line was passed."""

    loop: SetLoop
    call: Call
    ranks: tuple[int, ...]
    passed: int


def hash_orders(verdict: Verdict) -> Iterator[HashOrder]:
    """Such lines of a job whose ranks hash texts differently, and whose calls all fit each other: nothing else shows there."""
    sources = verdict.recording.sources
    if verdict.incidents or not sources:
        return
    seen = set()
    for group in verdict.facts.groups:
        ranks = _hashing_differently(verdict, group.members)
        for call, passed in _lines(group) if ranks else ():
            loop = set_loop_around(sources, call.site, call.op.word)
            if loop is not None and loop.size != 1 and (call.site, ranks) not in seen:
                seen.add((call.site, ranks))
                yield HashOrder(loop, call, ranks, passed)


def hash_order_of(verdict: Verdict, incident: Incident) -> HashOrder | None:
    """The loop over a set in which ranks of one line called for different elements, where they hash texts differently; or over a
    dict that is filled under keys of the data."""
    parted, sources = incident.divergence, verdict.recording.sources
    if parted is None or not incident.in_place or not sources:
        return None
    calls = [variant.call for variant in parted.variants]
    if len({call.site for call in calls}) > 1:
        return None
    ranks, site, word = _hashing_differently(verdict, parted.group.members), calls[0].site, calls[0].op.word
    loop = set_loop_around(sources, site, word, known_to_differ=True) if ranks else None
    if loop is not None:
        return HashOrder(loop, calls[0], ranks, 0) if loop.size != 1 else None
    met = dict_loop_around(sources, site, word) if parted.differs == SHAPE else None
    return HashOrder(met, calls[0], tuple(sorted(parted.group.members)), 0) if met is not None else None


@dataclass(frozen=True)
class GroupOrder:
    """A loop over a set in which ranks make groups: the first call of new_group, by its number, that is for other members on
    some of them. `asked`: members as they are written down ("": all) -> who made that group."""

    loop: SetLoop
    number: int
    asked: Mapping[str, tuple[int, ...]]


def group_order_of(verdict: Verdict) -> GroupOrder | None:
    """Such a loop, where the ranks hash texts differently; None where there is none."""
    sources = verdict.recording.sources
    if not sources or not _hashing_differently(verdict, verdict.facts.timelines):
        return None
    made = {rank: Making(timeline).calls for rank, timeline in sorted(verdict.facts.timelines.items())}
    for number in range(max(map(len, made.values()), default=0)):
        asked: dict[str, list[int]] = defaultdict(list)
        for rank, own in made.items():
            if len(own) > number:
                asked[own[number].members].append(rank)
        if len(asked) > 1:
            sites = {own[number].site for own in made.values() if len(own) > number}
            site = sites.pop()
            loop = set_loop_around(sources, site, "new_group", known_to_differ=True) if not sites else None
            by_members = {members: tuple(ranks) for members, ranks in asked.items()}
            return GroupOrder(loop, number + 1, by_members) if loop is not None else None
    return None


def _hashing_differently(verdict: Verdict, members: Iterable[int]) -> tuple[int, ...]:
    """Those of some ranks whose hashes of one text differ; () where they agree, or where that is not on record."""
    logs = verdict.recording.ranks
    hashes = {rank: logs[rank].environment.get(HASHES) for rank in members if rank in logs}
    known = {rank: found for rank, found in hashes.items() if found is not None}
    return tuple(sorted(known)) if len(set(known.values())) > 1 else ()


def _lines(group: GroupCalls) -> Iterator[tuple[Call, int]]:
    """The lines that one member passed more than once: the first call of each, and how often."""
    track = next((track for track in group.tracks.values() if track.count), None)
    if track is None:
        return
    rows = track.rows
    rows = rows[(rows["flags"] & int(CallFlag.NATIVE | CallFlag.OBJECT)) == 0]
    _, first, counts = np.unique(rows["site"], return_index=True, return_counts=True)
    for at, count in sorted(zip(first.tolist(), counts.tolist(), strict=True))[:MOST_LINES]:
        call = track.timeline.log.call(rows[at])
        if count > 1 and call.site:
            yield call, count
