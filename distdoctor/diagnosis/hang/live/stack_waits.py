"""Who waits for whom, as far as stacks tell: the arguments of a send or receive, and that a collective needs everybody."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from distdoctor.diagnosis.hang.live.rank_activity import Grade, RankActivity
from distdoctor.diagnosis.hang.rings import closed_chains
from distdoctor.recording.rank_set import named
from distdoctor.recording.trace.layout import Op

IN_PAIRS = (Op.SEND, Op.RECV)
Variant = list[RankActivity]  # ranks that wait in one call of one line


@dataclass(frozen=True)
class StackWait:
    """Ranks inside one call. `on`: the ranks that are in another one; () where the stack does not show whom it needs."""

    standings: tuple[RankActivity, ...]
    on: tuple[int, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(standing.rank for standing in self.standings)

    @property
    def op(self) -> Op | None:
        return self.standings[0].op

    @property
    def words(self) -> str:
        """`ranks 0-1 wait in all_reduce (train.py:41) for rank 2`."""
        first, several = self.standings[0], len(self.standings) > 1
        what = first.words.replace("waits", "wait", 1) if several else first.words
        peer = "" if self.op in IN_PAIRS else f" for {named(self.on)}"
        return f"{named(self.ranks)} {what} ({line_of(first)}){peer}"


def variants_of(waiting: Sequence[RankActivity]) -> tuple[Variant, ...]:
    """The ranks by what they wait in, the majority first."""
    found: dict[tuple[object, ...], Variant] = {}
    by_line = any(one.grade is not Grade.STACK for one in waiting)  # a dump names what backward is in, a stack does not
    for standing in waiting:
        roots = tuple((k, v) for k, v in sorted(standing.arguments.items()) if k in ("src", "dst") and v.isdigit())
        call = "" if by_line and standing.site else standing.call
        key = (call, roots if standing.op not in IN_PAIRS else (), standing.site, standing.group_number)
        found.setdefault(key, []).append(standing)
    return tuple(sorted(found.values(), key=lambda variant: (-len(variant), variant[0].rank)))


def stack_waits(variants: Iterable[Sequence[RankActivity]]) -> list[StackWait]:
    """The waits of ranks that are in these calls: one of each collective, one of each send and receive."""
    groups = [tuple(variant) for variant in variants]
    everybody = {one.rank: one for variant in groups for one in variant}
    found: list[StackWait] = []
    for variant in groups:
        if variant[0].op in IN_PAIRS:
            found += [StackWait((one,), _awaited(one, everybody)) for one in variant]
        else:
            mine = {one.rank for one in variant}
            unknown = any(one.names_a_group for one in variant)
            found.append(StackWait(variant, () if unknown else tuple(sorted(everybody.keys() - mine))))
    return found


def ring_of(waits: Sequence[StackWait]) -> tuple[StackWait, ...]:
    """The first closed chain among these waits; () where there is none."""
    ordered = sorted(waits, key=lambda wait: wait.ranks)
    inside = {rank: at for at, wait in enumerate(ordered) for rank in wait.ranks}
    needs = {at: [inside[rank] for rank in wait.on if rank in inside] for at, wait in enumerate(ordered)}
    ring = next(closed_chains(needs, {at: wait.ranks for at, wait in enumerate(ordered)}), [])
    return tuple(ordered[at] for at in ring)


def _awaited(one: RankActivity, everybody: dict[int, RankActivity]) -> tuple[int, ...]:
    """The other end of a send or receive, where that is in a call which does not answer it."""
    peer = _peer(one)
    other = everybody.get(peer)
    if other is None or peer == one.rank:
        return ()
    answers = {one.op, other.op} == set(IN_PAIRS) and _peer(other) == one.rank
    return () if answers else (peer,)


def _peer(one: RankActivity) -> int:
    given = one.arguments.get("dst" if one.op is Op.SEND else "src", "")
    return int(given) if given.isdigit() else -1


def line_of(standing: RankActivity) -> str:
    """`train.py:41`."""
    return standing.site.short if standing.site else "an unknown line"
