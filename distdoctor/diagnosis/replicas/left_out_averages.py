"""Parameters that ranks train apart and bring together now and then, and others that are never among these.

What the ranks hold is averaged, or handed round, between steps: it differs behind one step and is the same before the next one.
A part that is each rank's own on purpose (a head, norms) is trained from the start. One that is trained only later, when averages
had been made already, was not on their list.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.rank_gradients import TensorInfo, Update
from distdoctor.recording.recording import SourceLine
from distdoctor.recording.trace.layout import TensorFlag

MOST_RANKS = 64  # whose parameters are compared
ENOUGH = 2  # parameters that meet, and meetings at which the others stay apart


@dataclass(frozen=True)
class LeftOut:
    """`names` are trained from step `since` on, or later, when `met` others had met; they stay apart at `meetings`.

    `averages`: the call that carries most before such a meeting.
    """

    ranks: tuple[int, ...]
    optimizer: int
    since: int
    names: tuple[str, ...]
    met: int
    meetings: int
    averages: SourceLine
    site: SourceLine
    at_ns: int


Rows = Mapping[str, Mapping[int, Any]]  # name -> rank


def left_out(gradients: Gradients) -> Iterator[LeftOut]:
    """Of the ranks that train together (the first of many), where nothing tells who should agree."""
    ranks = tuple(sorted(gradients.ranks))[:MOST_RANKS]
    if not any(_is_whole(tensor) for tensor in gradients.tensors_of(ranks)):
        return
    left: dict[str, tuple[int, ...]] = {}
    begun: dict[str, Update | None] = {}  # the first step in which it was trained, None: before anything had met
    met: set[str] = set()
    apart: dict[str, int] = defaultdict(int)
    earlier, averages = 0, SourceLine()
    for updates in _looks(gradients, ranks):
        rows, first = _rows(gradients, updates), updates[ranks[0]]
        equal = {name for name, own in rows.items() if len({int(row["before"]) for row in own.values()}) == 1}
        meeting = {name for name in equal if len({*left.get(name, ())}) > 1}
        if len(meeting) >= ENOUGH:
            met |= meeting
            averages = averages or _carrier(gradients, ranks[0], earlier, first.at_ns)
            for name in rows:
                apart[name] += name not in equal
        for name, own in rows.items():
            if name not in begun and all(int(row["grad"]) for row in own.values()):
                begun[name] = first if met and name in equal else None
            left[name] = tuple(int(own[rank]["param"]) for rank in ranks)
        earlier = first.at_ns
    names = [name for name, count in apart.items() if count >= ENOUGH and name not in met and begun.get(name)]
    starts = {name: start for name in names if (start := begun[name]) is not None}
    if starts:
        start = min(starts.values(), key=lambda one: one.at_ns)
        meetings = max(apart[name] for name in starts)
        where = (start.optimizer, start.step)
        yield LeftOut(ranks, *where, tuple(starts), len(met), meetings, averages, start.site, start.at_ns)


def _is_whole(tensor: TensorInfo) -> bool:
    """Whether it is a parameter that is no part of one, of which nothing tells who should agree on it."""
    return not tensor.agree and not tensor.flags & (TensorFlag.SHARDED | TensorFlag.BUFFER)


def _looks(gradients: Gradients, ranks: Sequence[int]) -> Iterator[dict[int, Update]]:
    """The steps that all ranks have looked at, in the order in which the first one made them."""
    found: dict[tuple[int, int], dict[int, Update]] = defaultdict(dict)
    for rank in ranks:
        for update in gradients.ranks[rank].updates:
            if update.step and update.digested and not update.agree:
                found[update.optimizer, update.step][rank] = update
    whole = [updates for updates in found.values() if len(updates) == len(ranks) > 1]
    yield from sorted(whole, key=lambda updates: updates[ranks[0]].at_ns)


def _rows(gradients: Gradients, updates: Mapping[int, Update]) -> Rows:
    """Of the parameters that every rank holds whole, and whose bits before the step are known."""
    found: dict[str, dict[int, Any]] = defaultdict(dict)
    for rank, update in updates.items():
        own = gradients.ranks[rank]
        for name, row in own.digests(update.step, update.optimizer).items():
            info = own.info(name, update.optimizer)
            if info is not None and _is_whole(info) and int(row["before"]):
                found[name][rank] = row
    return {name: by_rank for name, by_rank in found.items() if len(by_rank) == len(updates)}


def _carrier(gradients: Gradients, rank: int, begin_ns: int, end_ns: int) -> SourceLine:
    """The line of the call that carries most between two steps."""
    log = gradients.ranks[rank].log
    entered = log.calls["entered_ns"] + log.monotonic_to_wall_ns
    calls = log.calls[(entered > begin_ns) & (entered < end_ns)]
    return log.site(int(calls[calls["nbytes"].argmax()]["site"])) if len(calls) else SourceLine()
