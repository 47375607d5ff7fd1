"""Ranks that wait for each other in different calls, seen in their stacks alone: nobody recorded how they got there.

One of them skipped, added or swapped a collective; which one, only a recording can prove. The majority is taken to be right; a
condition on the rank around one of the lines (`if rank == 0`) decides a tie. Which illness it is, is for the checks to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import networkx as nx

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.diagnosis.finding import LIKELY, POSSIBLE, Finding, Prescription
from distdoctor.diagnosis.hang.live.rank_activity import Activity, RankActivity
from distdoctor.diagnosis.hang.live.stall import Stall
from distdoctor.diagnosis.source.loop_exits import LoopExit, left_by
from distdoctor.diagnosis.source.rank_guard import ENCLOSES, Guard, guards_of_one
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import Op

IN_CALLS = (Activity.COLLECTIVE, Activity.BACKWARD, Activity.HANDLE, Activity.NEW_GROUP)
KEY = "ranks apart"  # of the one fact that checks explain
_IN_PAIRS = (Op.SEND, Op.RECV)
Variant = list[RankActivity]


@dataclass(frozen=True)
class RanksApart:
    """The fact that ranks wait for each other in different calls, seen in their stacks alone."""

    streams: ClassVar[frozenset[str]] = frozenset()
    stall: Stall

    @classmethod
    def of(cls, recording: Recording) -> Self:
        """NotApplicable: nobody has looked at the processes, the job is over, or what was recorded says more."""
        stall = Stall.of(recording)
        if recording.ranks and "collectives" in recording.streams:
            raise NotApplicable("what was recorded says more")
        if not recording.job.running:
            raise NotApplicable("the job is no longer running")
        return cls(stall)

    @cached_property
    def _waiting(self) -> Variant:
        """Who waits in a call; nobody where the network is dead, because who is ahead has what the other waits for."""
        return [] if self.stall.cut else list(self.stall.of_kind(*IN_CALLS))

    @cached_property
    def gone(self) -> GoneRanks | None:
        """The ranks whose process is gone while others wait."""
        lost = [s for s in self.stall.of_kind(Activity.GONE) if s.rank in self.stall.stacks.absent]
        if not self._waiting or not lost or any(True for _ in self.stall.of_kind(Activity.INIT)):
            return None
        return GoneRanks(self.stall, tuple(lost))

    @cached_property
    def _is_deadlocked(self) -> bool:
        everybody = len(self._waiting) == len(self.stall.standings) > 1
        return self.gone is None and everybody and self.stall.exceeds_patience(self.stall.waited_seconds)

    @cached_property
    def ring(self) -> Variant:
        """Ranks that all receive from one another."""
        if not self._is_deadlocked:
            return []
        receiving = [s for s in self._waiting if s.op is Op.RECV and s.arguments.get("src", "").isdigit()]
        on = {s.rank: int(s.arguments["src"]) for s in receiving}
        receives = nx.DiGraph((rank, source) for rank, source in sorted(on.items()) if source in on)
        try:
            chain = {rank for rank, _ in nx.find_cycle(receives)}
        except nx.NetworkXNoCycle:
            return []
        return [s for s in self._waiting if s.rank in chain]

    @cached_property
    def sides(self) -> Sides | None:
        """The ranks by what they wait in, where they wait in different calls and in no ring of receives."""
        if not self._is_deadlocked or self.ring:
            return None
        variants = _variants(self._waiting)
        return _sides(self.stall, variants) if len(variants) > 1 else None


@dataclass(frozen=True)
class GoneRanks:
    """Ranks whose process is gone while others wait."""

    stall: Stall
    lost: tuple[RankActivity, ...]

    @property
    def ended_in_order(self) -> bool:
        """Whether the first of them is known to have ended with exit code 0."""
        end = self.stall.recording.job.ends.get(self.lost[0].rank)
        return end is not None and end.exit_code == 0

    def finding(self) -> Finding:
        stall, first, ranks = self.stall, self.stall.waiting[0], tuple(s.rank for s in self.lost)
        why = "nothing shows how it ended"
        if self.ended_in_order:
            why = "the launcher is alive and ends all ranks as soon as one fails, so this one exited normally, with exit code 0"
        in_groups = all(s.names_a_group for s in stall.waiting)
        if in_groups:
            why += "; the stacks do not show whether it is a member of the group that was passed to the call"
        left = left_by(stall.recording.sources, first.site)
        if left:
            why += f"; {left.effect}"
        return Finding(
            title=f"{'has' if len(ranks) == 1 else 'have'} no running process, while {stall.who_waits}",
            ranks=ranks,
            confidence=POSSIBLE if in_groups else LIKELY,
            place=first.site,
            places=stall.places(*self.lost),
            evidence={"waiting_ranks": [s.rank for s in stall.waiting]},
            why=why,
            prescriptions=(
                Prescription(
                    "stay-until-the-end",
                    change=left.cure
                    if left
                    else f"keep {named(ranks)} running through {first.call} ({line_of(first)}), or stop all ranks together",
                ),
            ),
        )


@dataclass(frozen=True)
class Sides:
    """The ranks by what they wait in. `odd` took another path than `usual`; on a `tie` nothing says which of them did.

    `guard`: the condition on the rank around the line of `odd` alone.
    """

    stall: Stall
    variants: tuple[Variant, ...]
    usual: Variant
    odd: Variant
    tie: bool
    guard: Guard | None

    @property
    def is_under_rank(self) -> bool:
        """Whether the odd ones are in a collective that stands under a condition on the rank."""
        makes_group = self.odd[0].doing is Activity.NEW_GROUP
        return self.guard is not None and self.guard.how == ENCLOSES and not makes_group and not self.in_pairs

    @property
    def in_pairs(self) -> bool:
        """Whether it is about a send or a receive."""
        odd, usual = (variant[0].op in _IN_PAIRS for variant in (self.odd, self.usual))
        return odd and (usual or not self.tie)

    @property
    def makes_group(self) -> bool:
        return self.odd[0].doing is Activity.NEW_GROUP and not self.tie

    @property
    def is_same_call(self) -> bool:
        """Whether all of them are in one call of one line, with other arguments."""
        return self.usual[0].call == self.odd[0].call and self.usual[0].site == self.odd[0].site

    @cached_property
    def local(self) -> tuple[str, str, int] | None:
        """(line of the call, condition, its line) of a condition around one side alone, where none on the rank is known."""
        if self.guard is not None:
            return None
        return _condition(self.odd, self.usual, self.stall) or _condition(self.usual, self.odd, self.stall)

    @cached_property
    def left(self) -> LoopExit | None:
        """How one side can have left a loop that the other is in, where no condition tells."""
        if self.guard or self.local:
            return None
        sources, sites = self.stall.recording.sources, (self.usual[0].site, self.odd[0].site)
        return left_by(sources, *sites) or (left_by(sources, *reversed(sites)) if self.tie else None)

    def finding(self, remedy: str, change: str, *, tipped_by: tuple[str, ...] = ()) -> Finding:
        """The finding as all checks tell it, with the check's own remedy."""
        several, odd, guard = len(self.variants) > 2, self.odd, self.guard
        others = self.variants if self.tie else self.variants[1:]
        ranks = sorted(s.rank for v in others for s in v) if self.tie or several else [s.rank for s in odd]
        unclear = self.tie or several or bool(self.stall.stacks.elsewhere)
        calls = {named(s.rank for s in v): f"{v[0].call}{v[0].peer} at {line_of(v[0])}" for v in self.variants[:8]}
        return Finding(
            title=_title(self.usual, odd, self.tie),
            ranks=tuple(ranks),
            confidence=POSSIBLE if unclear else LIKELY,
            place=odd[0].site,
            places=self.stall.places(*(s for variant in self.variants[1:] for s in variant)),
            evidence={"calls": calls} | ({"tipped_by": [guard.word, *tipped_by]} if guard is not None else {}),
            why=self._why(),
            prescriptions=(Prescription(remedy, change=self.left.cure if self.left else change + self._decided()),),
            explains=(KEY,),
        )

    def _why(self) -> str:
        odd, guard = self.odd, self.guard
        if guard is not None:
            why = f"line {odd[0].site.line} is reached only under `{guard.test}` (line {guard.line}), which depends on the rank"
        elif self.tie:
            why = "equally many ranks are in each call: the stacks do not show which ones are wrong; a recording does"
        else:
            why = "fewer ranks are in this call than in the other; what they did before was not recorded"
        if self.local:
            why += f"; {self.local[0]} is inside `{self.local[1]}` (line {self.local[2]})"
        return f"{why}; {self.left.effect}" if self.left else why

    def _decided(self) -> str:
        if not self.local:
            return ""
        return f"; if `{self.local[1]}` can differ between ranks, broadcast the values it tests first"


def _variants(waiting: Variant) -> tuple[Variant, ...]:
    """The ranks by what they wait in, the majority first."""
    found: dict[tuple[object, ...], Variant] = {}
    for standing in waiting:
        roots = tuple((k, v) for k, v in sorted(standing.arguments.items()) if k in ("src", "dst") and v.isdigit())
        key = (standing.call, roots if standing.op not in _IN_PAIRS else (), standing.site)
        found.setdefault(key, []).append(standing)
    return tuple(sorted(found.values(), key=lambda variant: (-len(variant), variant[0].rank)))


def _sides(stall: Stall, variants: tuple[Variant, ...]) -> Sides:
    usual, odd = variants[0], variants[1]
    tie = len(usual) == len(odd)
    of_odd, of_usual = _guard(odd, usual, stall), _guard(usual, odd, stall)
    if tie and of_usual is not None and of_odd is None:
        return Sides(stall, variants, odd, usual, tie=False, guard=of_usual)
    tie = tie and not (of_odd is not None and of_usual is None)
    return Sides(stall, variants, usual, odd, tie, of_odd)


def _guard(variant: Variant, other: Variant, stall: Stall) -> Guard | None:
    """A condition on the rank around this side's line that is not around the other side's."""
    guards = guards_of_one(stall.recording.sources, variant[0].site, other[0].site)
    return next((g for g in guards if g.on_rank and all(g.lets_through(s.rank) is not False for s in variant)), None)


def _condition(variant: Variant, other: Variant, stall: Stall) -> tuple[str, str, int] | None:
    """(line of the call, condition, its line): the innermost condition around this side alone; ranks may differ in it."""
    guards = guards_of_one(stall.recording.sources, variant[0].site, other[0].site)
    found = next((guard for guard in guards if guard.how == ENCLOSES), None)
    return (line_of(variant[0]), f"if {found.test[:60]}:", found.line) if found is not None else None


def _title(usual: Variant, odd: Variant, tie: bool) -> str:
    if tie:
        return f"disagree: {_who_waits(usual)}, {_who_waits(odd)}"
    return f"took a different path: {_who_waits(odd)}, {_who_waits(usual)}"


def _who_waits(variant: Variant) -> str:
    """`ranks 0-1 wait in all_reduce (train.py:41)`."""
    ranks, words = [s.rank for s in variant], variant[0].words
    return f"{named(ranks)} {words if len(ranks) == 1 else words.replace('waits', 'wait', 1)} ({line_of(variant[0])})"


def line_of(standing: RankActivity) -> str:
    """`train.py:41`."""
    return f"{standing.site.path.rpartition('/')[2]}:{standing.site.line}" if standing.site else "an unknown line"
