"""Where the members of a group part: the first number at which they issued different operations.

Comparing N ranks costs O(N): each rank's running digest at its own last number is held against that of the rank that got
furthest. Only ranks that disagree are looked through, call by call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from distdoctor.diagnosis.facts.collectives import GroupCalls, Track
from distdoctor.diagnosis.facts.timeline import UNBLOCKING
from distdoctor.recording.recording import Call
from distdoctor.recording.trace.layout import EQUAL_SIZES, ROOTED, CallFlag, Op, ReduceOp

# What can differ between two calls of one number, the most telling first. A different reduction alone hangs nobody.
OPERATION, ROOT, DTYPE, SHAPE, REDUCTION = "operation", "root", "dtype", "shape", "reduction"
_ONE_BYTE = frozenset({"bool", "uint8", "int8"})  # hold 0 and 1 alike
# What others are viewed as, where a backend does not know them.
_CARRIERS = frozenset({"uint8", "int8", "uint16", "int16"})
# These take tensors of different sizes on NCCL, where they become broadcasts (torch 2.15, ProcessGroupNCCL.cpp, check_same_size).
_UNEVEN_ON_NCCL = frozenset({Op.ALL_GATHER, Op.REDUCE_SCATTER})


@dataclass(frozen=True)
class Variant:
    """The ranks that issued one and the same call at the number where a group parts."""

    calls: tuple[Call, ...]  # one per rank, by rising rank

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(call.rank for call in self.calls)

    @property
    def call(self) -> Call:
        return self.calls[0]


@dataclass(frozen=True)
class CallDivergence:
    """A group parts at `number`. `variants` are sorted by size, the majority first; `differs` says in what they differ.

    `at_ns` is when the first rank entered the call that did not fit, on the wall clock: only then they differed.
    """

    group: GroupCalls
    number: int
    variants: tuple[Variant, ...]
    differs: str
    at_ns: int

    @property
    def is_tie(self) -> bool:
        """No variant has more ranks than every other, whatever the members did of whom nothing is on record."""
        return len(self.variants[0].ranks) <= len(self.variants[1].ranks) + len(self.group.unseen)

    @property
    def odd_ranks(self) -> tuple[int, ...]:
        """The ranks outside the majority; everybody where there is none."""
        odd = self.variants if self.is_tie else self.variants[1:]
        return tuple(sorted(rank for variant in odd for rank in variant.ranks))


def difference(one: Call, other: Call, backend: str = "") -> str:
    """In what two calls of the same number differ, "" where they fit together.

    A reduction that could not be seen fits every other; shapes with the same number of elements fit, because only bytes travel.
    """
    if one.op is not other.op:
        return OPERATION
    if one.op in ROOTED and one.root != other.root:
        return ROOT
    if is_object_list(one) and is_object_list(other):
        return SHAPE if one.shape != other.shape else ""
    if one.op in EQUAL_SIZES and not one.flags & other.flags & CallFlag.OBJECT:
        uneven = one.op in _UNEVEN_ON_NCCL and "nccl" in backend
        if not reads_the_same(one, other):
            return DTYPE
        same_bytes = one.dtype != other.dtype and one.nbytes == other.nbytes > 0
        if not same_bytes and one.shape != other.shape and not uneven and elements(one.shape) != elements(other.shape):
            return SHAPE
    unseen = ReduceOp.UNSEEN in (one.reduce_op, other.reduce_op)
    return REDUCTION if one.reduce_op is not other.reduce_op and not unseen else ""


def reads_the_same(one: Call, other: Call) -> bool:
    """Whether a dtype reads what the other one wrote. Where nothing is added up, so do masks, which are sent as bool and received
    as bytes, and as many bytes that one side views as small integers (bfloat16 sent as int16)."""
    if one.dtype == other.dtype or not (one.dtype and other.dtype):
        return True
    if ReduceOp.NONE not in (one.reduce_op, other.reduce_op):
        return False
    carried = one.nbytes == other.nbytes > 0 and bool({one.dtype, other.dtype} & _CARRIERS)
    return carried or {one.dtype, other.dtype} <= _ONE_BYTE


def is_object_list(call: Call) -> bool:
    """Whether a call is the first of broadcast_object_list: the sizes of its objects, so that it is as long as the list."""
    return call.op is Op.BROADCAST and bool(call.flags & CallFlag.OBJECT) and call.dtype == "int64"


def elements(shape: str) -> int:
    """How many elements a shape text stands for (`[64, 3];[5];+2 tensors, 40 elements`)."""
    total = 0
    for part in shape.split(";"):
        if part.startswith("+"):
            total += int(part.split(", ")[-1].split()[0])
        elif part:
            total += int(np.prod([int(word) for word in part.strip("[]").split(",") if word.strip()], dtype=np.int64))
    return total


def divergences(group: GroupCalls, *, live: bool = False) -> Iterable[CallDivergence]:
    """Where the group parts: first in a reduction (after which it can go on), and first in anything else.

    `live`: the ranks were writing while they were read, so each record is held against its digest before it is believed.
    """
    tracks = list(group.tracks.values())
    if len(tracks) < 2:
        return
    ahead = max(tracks, key=lambda track: (track.count, -track.rank))
    odd = [track for track in tracks if _disagrees(track, ahead)]
    if not odd:
        yield from _lists_apart(group, live)
        return
    found: dict[bool, int] = {}  # whether it is a matter of the reduction alone -> the first number
    for track in odd:
        for number, differs in _first_differences(track, ahead, group.backend):
            alone = differs == REDUCTION
            found[alone] = min(number, found.get(alone, number))
    for alone, number in sorted(found.items(), key=lambda item: item[1]):
        if not alone or number < found.get(False, number + 1):
            parted = _parted(group, number, alone, live)
            if parted is not None:
                yield parted


def _lists_apart(group: GroupCalls, live: bool) -> Iterable[CallDivergence]:
    """The last call that all have issued, where it is a broadcast of objects and the lists are not equally long.

    The digests leave the sizes of objects out.
    """
    number = min(track.count for track in group.tracks.values())
    calls = [track.call(number) for track in group.tracks.values()]
    if number and all(call is not None and is_object_list(call) for call in calls):
        parted = _parted(group, number, False, live)
        yield from [parted] if parted is not None else []


def went_past(parted: CallDivergence) -> bool:
    """Whether every member has gone on since: the transport let the disagreement through, and it holds nobody any more."""
    return all(_passed(track, parted.number) for track in parted.group.tracks.values())


def _passed(track: Track, number: int) -> bool:
    """Whether a rank came back from a blocking call of that number or a later one, or has stepped since it issued it."""
    call = track.call(number)
    if call is None:
        return False
    rows = track.rows[track.rows["number"] >= number]
    came_back = (rows["returned_ns"] > 0) & (rows["flags"] & (UNBLOCKING | int(CallFlag.FAILED)) == 0)
    steps = track.timeline.log.steps
    return bool(came_back.any()) or (len(steps) > 0 and int(steps[-1]["at_ns"]) > call.entered_ns)


def _disagrees(track: Track, ahead: Track) -> bool:
    """Whether the digests differ at the last number of `track`, or cannot be compared any more."""
    if track.count == 0:
        return False
    return ahead.prefix_at(track.count) != track.prefix


def _first_differences(track: Track, ahead: Track, backend: str) -> Iterable[tuple[int, str]]:
    """(number, in what) of the first difference in a reduction and of the first in anything else, among what both still hold."""
    first, last = max(track.first, ahead.first), min(track.count, ahead.count)
    mine, theirs = _span(track, first, last), _span(ahead, first, last)
    if mine is None or theirs is None:
        return
    judged: dict[tuple[int, int], str] = {}
    reduction_told = False
    for at in np.flatnonzero(mine["signature"] != theirs["signature"]):
        pair = (int(mine[at]["signature"]), int(theirs[at]["signature"]))
        if pair not in judged:
            judged[pair] = difference(track.timeline.log.call(mine[at]), ahead.timeline.log.call(theirs[at]), backend)
        differs = judged[pair]
        if differs and differs != REDUCTION:
            yield first + int(at), differs
            return
        if differs and not reduction_told:
            reduction_told = True
            yield first + int(at), differs


def _span(track: Track, first: int, last: int) -> np.ndarray | None:
    """The rows first..last, None when one of them is torn."""
    start = track.row(first)
    if last < first or start is None:
        return None
    at = int(np.searchsorted(track.rows["number"], first))
    rows = track.rows[at : at + last - first + 1]
    return rows if len(rows) == last - first + 1 and int(rows[-1]["number"]) == last else None


def _parted(group: GroupCalls, number: int, by_reduction: bool, live: bool) -> CallDivergence | None:
    tracks = [track for track in group.tracks.values() if not live or track.is_whole(number)]
    calls = [call for track in tracks if (call := track.call(number)) is not None]
    variants: list[list[Call]] = []
    for call in sorted(calls, key=lambda call: call.rank):
        for variant in variants:
            differs = difference(call, variant[0], group.backend)
            if not differs or (differs == REDUCTION and not by_reduction):
                variant.append(call)
                break
        else:
            variants.append([call])
    if len(variants) < 2:
        return None
    variants.sort(key=lambda variant: (-len(variant), variant[0].rank))
    entered = [min(group.tracks[c.rank].timeline.wall(c.entered_ns) for c in variant) for variant in variants]
    differs = difference(variants[0][0], variants[1][0], group.backend)
    return CallDivergence(group, number, tuple(Variant(tuple(v)) for v in variants), differs, sorted(entered)[1])
