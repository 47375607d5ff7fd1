"""Ranks that wait for each other in different calls, seen in their stacks alone: nobody recorded how they got there.

One of them skipped, added or swapped a collective; which one, only a recording can prove. The majority is taken to be right; a
condition on the rank around one of the lines (`if rank == 0`) decides a tie. Which illness it is, is for the checks to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.diagnosis.finding import LIKELY, POSSIBLE, Finding, Prescription
from distdoctor.diagnosis.hang.live.rank_activity import Activity, RankActivity
from distdoctor.diagnosis.hang.live.stack_waits import IN_PAIRS, StackWait, line_of, ring_of, stack_waits
from distdoctor.diagnosis.hang.live.stall import Stall
from distdoctor.diagnosis.hang.wording import at, decision_places
from distdoctor.diagnosis.source.deciding import deciding_condition
from distdoctor.diagnosis.source.deciding_value import ROOT, deciding_value
from distdoctor.diagnosis.source.decision import Decision
from distdoctor.diagnosis.source.loop_exits import LoopExit, left_by
from distdoctor.diagnosis.source.rank_guard import ENCLOSES, Guard, guards_of_one
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import Op

IN_CALLS = (Activity.COLLECTIVE, Activity.BACKWARD, Activity.HANDLE, Activity.NEW_GROUP)
__all__ = ["KEY", "GoneRanks", "RanksApart", "Sides", "line_of"]
KEY = "ranks apart"  # of the one fact that checks explain
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
    def ring(self) -> tuple[StackWait, ...]:
        """Ranks that all receive from one another, or all send to one another."""
        if not self._is_deadlocked:
            return ()
        pairs = [one for one in stack_waits(_variants(self._waiting)) if one.op in IN_PAIRS]
        for op in IN_PAIRS:
            ring = ring_of([one for one in pairs if one.op is op and all(_is_in(other, op, pairs) for other in one.on)])
            if ring:
                return ring
        return ()

    @cached_property
    def sides(self) -> Sides | None:
        """The ranks by what they wait in, where they wait in different calls and in no such ring."""
        if not self._is_deadlocked or self.ring:
            return None
        variants = _variants(self._waiting)
        return _sides(self.stall, variants) if len(variants) > 1 else None


def _is_in(rank: int, op: Op, waits: Sequence[StackWait]) -> bool:
    return any(rank in wait.ranks and wait.op is op for wait in waits)


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
        odd, usual = (variant[0].op in IN_PAIRS for variant in (self.odd, self.usual))
        return odd and (usual or not self.tie)

    @property
    def makes_group(self) -> bool:
        return self.odd[0].doing is Activity.NEW_GROUP and not self.tie

    @property
    def is_same_call(self) -> bool:
        """Whether all of them are in one call of one line, with other arguments."""
        return self.usual[0].call == self.odd[0].call and self.usual[0].site == self.odd[0].site

    @cached_property
    def decision(self) -> Decision | None:
        """What in the source most likely let them part, where no condition on the rank around one side tells."""
        one, other, sources = self.odd[0].site, self.usual[0].site, self.stall.recording.sources
        if self.guard is not None or not sources:
            return None
        try:
            if one == other:
                return deciding_value(sources, one, ROOT)
            mine, others = ([s.rank for s in side] for side in (self.odd, self.usual))
            return deciding_condition(sources, one, other, mine, others)
        except RecursionError:  # generated code
            return None

    @cached_property
    def cycle(self) -> tuple[StackWait, ...]:
        """Their waits for each other, where these close a ring."""
        return ring_of(stack_waits(self.variants))

    @cached_property
    def left(self) -> LoopExit | None:
        """How one side can have left a loop that the other is in, where no condition tells."""
        if self.guard:
            return None
        sources, sites = self.stall.recording.sources, (self.usual[0].site, self.odd[0].site)
        return left_by(sources, *sites) or (left_by(sources, *reversed(sites)) if self.tie else None)

    def finding(self, remedy: str, change: str, *, tipped_by: tuple[str, ...] = ()) -> Finding:
        """The finding as all checks tell it, with the check's own remedy."""
        several, odd = len(self.variants) > 2, self.odd
        others = self.variants if self.tie else self.variants[1:]
        ranks = sorted(s.rank for v in others for s in v) if self.tie or several else [s.rank for s in odd]
        unclear = self.tie or several or bool(self.stall.stacks.elsewhere)
        return Finding(
            title=_title(self.usual, odd, self.tie),
            ranks=tuple(ranks),
            confidence=POSSIBLE if unclear else LIKELY,
            place=odd[0].site,
            places=(
                *self.stall.places(*(s for variant in self.variants[1:] for s in variant)),
                *decision_places(self.decision, {variant[0].site for variant in self.variants}),
            ),
            evidence=self._evidence(tipped_by),
            why=self._why(),
            prescriptions=(Prescription(remedy, change=self.left.cure if self.left else change + self._decided()),),
            explains=(KEY,),
        )

    def _evidence(self, tipped_by: tuple[str, ...]) -> dict[str, object]:
        """What they are in, and where their waits close a ring, that ring edge by edge."""
        shown = self.variants[:8]
        found: dict[str, object] = {
            "calls": {named(s.rank for s in v): f"{v[0].call}{v[0].peer} at {line_of(v[0])}" for v in shown}
        }
        if self.cycle:
            found["cycle"] = [wait.words for wait in self.cycle]
        if self.guard is not None:
            found["tipped_by"] = [self.guard.word, *tipped_by]
        return found

    def _why(self) -> str:
        odd, guard = self.odd, self.guard
        if guard is not None:
            why = f"line {odd[0].site.line} is reached only under `{guard.test}` (line {guard.line}), which depends on the rank"
        elif self.tie:
            why = "equally many ranks are in each call: the stacks do not show which ones are wrong; a recording does"
        else:
            why = "fewer ranks are in this call than in the other; what they did before was not recorded"
        if self.left:
            return f"{why}; {self.left.effect}"
        return f"{why}; most likely they diverged at {self.decision.words}" if self.decision else why

    def _decided(self) -> str:
        if self.decision is None or not self.decision.decides_alone:
            return ""
        return f"; decide once for all ranks what `{self.decision.test}` ({at(self.decision.site)}) tests"


def _variants(waiting: Variant) -> tuple[Variant, ...]:
    """The ranks by what they wait in, the majority first."""
    found: dict[tuple[object, ...], Variant] = {}
    for standing in waiting:
        roots = tuple((k, v) for k, v in sorted(standing.arguments.items()) if k in ("src", "dst") and v.isdigit())
        key = (standing.call, roots if standing.op not in IN_PAIRS else (), standing.site)
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


def _title(usual: Variant, odd: Variant, tie: bool) -> str:
    if tie:
        return f"disagree: {_who_waits(usual)}, {_who_waits(odd)}"
    return f"took a different path: {_who_waits(odd)}, {_who_waits(usual)}"


def _who_waits(variant: Variant) -> str:
    """`ranks 0-1 wait in all_reduce (train.py:41)`."""
    ranks, words = [s.rank for s in variant], variant[0].words
    return f"{named(ranks)} {words if len(ranks) == 1 else words.replace('waits', 'wait', 1)} ({line_of(variant[0])})"
