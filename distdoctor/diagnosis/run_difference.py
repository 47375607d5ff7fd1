"""Where two runs of a job part: the first collective, loss and gradient that differ, and what became slower or larger."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from distdoctor.diagnosis.check import NotSeen
from distdoctor.diagnosis.facts.collectives import Collectives, GroupCalls
from distdoctor.diagnosis.memory.memory import Memory, mib
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.speed.step_times import step_times
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Call, Recording


@dataclass(frozen=True)
class Compared:
    """One thing of two runs. `equal`: None where it cannot be told. `ratio`: B over A, of what is measured; NaN of the others."""

    what: str
    words: str
    equal: bool | None
    ratio: float = math.nan


def compare_runs(a: Recording, b: Recording) -> list[Compared]:
    """What is alike and what is not, in the order in which somebody asks."""
    return [_world(a, b), _collectives(a, b), *_training(a, b), _steps(a, b), _memory(a, b)]


def _world(a: Recording, b: Recording) -> Compared:
    same = a.world_size == b.world_size
    return Compared("ranks", f"{a.world_size}" if same else f"{a.world_size} and {b.world_size}", same)


def _collectives(a: Recording, b: Recording) -> Compared:
    """The first call of a group that is another one, or that only one run has."""
    parted = min((one for one in _partings(a, b)), key=lambda one: one[0], default=None)
    if parted is not None:
        return Compared("collectives", parted[1], False)
    groups = Collectives.of(a).groups
    count = sum(max(group.counts.values(), default=0) for group in groups)
    return Compared(
        "collectives",
        f"the same {count} in {len(groups)} group{'' if len(groups) == 1 else 's'}" if count else "none",
        True if count else None,
    )


def _partings(a: Recording, b: Recording) -> Iterator[tuple[int, str]]:
    """(when in A, what) of each group and rank whose calls part."""
    others = {(group.members, group.incarnation, number): group for number, group in _numbered(b)}
    for number, group in _numbered(a):
        other = others.get((group.members, group.incarnation, number))
        for rank in group.tracks if other is not None else ():
            found = _first_other(group, other, rank) if other is not None and rank in other.tracks else None
            if found is not None:
                yield found


def _numbered(recording: Recording) -> Iterator[tuple[int, GroupCalls]]:
    """The groups of the same members are told apart by the order in which they were made."""
    seen: dict[tuple[int, ...], int] = {}
    for group in Collectives.of(recording).groups:
        seen[group.members] = seen.get(group.members, -1) + 1
        yield seen[group.members], group


def _first_other(group: GroupCalls, other: GroupCalls, rank: int) -> tuple[int, str] | None:
    mine, theirs = group.tracks[rank], other.tracks[rank]
    shared = np.intersect1d(mine.rows["number"], theirs.rows["number"])
    left, right = (track.rows[np.isin(track.rows["number"], shared)]["signature"] for track in (mine, theirs))
    apart = np.flatnonzero(left != right)
    if len(apart):
        number = int(shared[apart[0]])
        one, two = mine.call(number), theirs.call(number)
        assert one is not None
        return one.entered_ns, f"#{number} of {group.words} on rank {rank}: A {_call(one)}, B {_call(two)}"
    if mine.count != theirs.count:
        more, name = (mine, "A") if mine.count > theirs.count else (theirs, "B")
        call = more.call(min(mine.count, theirs.count) + 1)
        first = mine.call(mine.count)
        return (
            first.entered_ns if first is not None else 1 << 62,
            f"rank {rank} issued {mine.count} on {group.words} in A, {theirs.count} in B; {name} goes on with {_call(call)}",
        )
    return None


def _call(call: Call | None) -> str:
    if call is None:
        return "a call that is forgotten"
    where = f" at {call.site.short}" if call.site else ""
    return f"{call.op.word} {call.shape}{where}"


def _training(a: Recording, b: Recording) -> Iterator[Compared]:
    """Loss and gradients, step by step, to the last bit."""
    try:
        one, two = Gradients.of(a), Gradients.of(b)
    except NotSeen as reason:
        yield Compared("loss", f"not compared: {reason}", None)
        yield Compared("gradients", f"not compared: {reason}", None)
        return
    for what, field in (("loss", "loss"), ("gradients", "grads")):
        mine, theirs = _values(one, field), _values(two, field)
        shared = sorted(mine.keys() & theirs.keys())
        apart = [key for key in shared if not _same(mine[key], theirs[key])]
        if not shared:
            yield Compared(what, "no step that both runs looked at", None)
        elif apart:
            step, rank = apart[0]
            ranks = [r for s, r in apart if s == step]
            numbers = f": {mine[step, rank]:.6g} and {theirs[step, rank]:.6g}" if field == "loss" else ""
            yield Compared(what, f"differ from step {step} on, {named(ranks)}{numbers}", False)
        else:
            yield Compared(what, f"equal to the last bit in {len({step for step, _ in shared})} steps", True)


def _values(gradients: Gradients, field: str) -> dict[tuple[int, int], float]:
    found: dict[tuple[int, int], float] = {}
    for rank, one in gradients.ranks.items():
        for update in one.updates:
            known = field == "loss" or (update.digested and update.number(field))
            if update.step and update.optimizer == one.updates[0].optimizer and known:
                found[update.step, rank] = update.value(field) if field == "loss" else update.number(field)
    return found


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _steps(a: Recording, b: Recording) -> Compared:
    one, two = (sorted(times.step for times in step_times(recording)) for recording in (a, b))
    if not one or not two:
        return Compared("step time", "not compared: too few steps", None)
    before, after = one[len(one) // 2], two[len(two) // 2]
    return Compared(
        "step time", f"{before / 1e6:.2f} ms and {after / 1e6:.2f} ms ({after / before - 1:+.0%})", None, after / before
    )


def _memory(a: Recording, b: Recording) -> Compared:
    try:
        one, two = (max((rank.peak for rank in Memory.of(recording).each()), default=0) for recording in (a, b))
    except NotSeen as reason:
        return Compared("memory", f"not compared: {reason}", None)
    if not one or not two:
        return Compared("memory", "not compared: none was measured", None)
    return Compared("memory", f"{mib(one)} and {mib(two)} at the highest ({two / one - 1:+.0%})", None, two / one)
