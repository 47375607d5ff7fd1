"""The sides that ranks are on which wait for each other in different calls, seen in their stacks alone.

The majority is taken to be right; a condition on the rank around one of the lines (`if rank == 0`), or around a call that led
there, decides a tie.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from textwrap import shorten

from distdoctor.diagnosis.finding import LIKELY, POSSIBLE, Finding, Place, Prescription
from distdoctor.diagnosis.hang.live.rank_activity import Activity
from distdoctor.diagnosis.hang.live.stack_guards import StackGuard, guard_between
from distdoctor.diagnosis.hang.live.stack_waits import IN_PAIRS, StackWait, Variant, line_of, ring_of, stack_waits
from distdoctor.diagnosis.hang.live.stall import MOST_WITHOUT_MESH, Stall
from distdoctor.diagnosis.hang.wording import at, decision_places
from distdoctor.diagnosis.source.deciding import deciding_condition
from distdoctor.diagnosis.source.deciding_value import ROOT, deciding_value
from distdoctor.diagnosis.source.decision import Decision
from distdoctor.diagnosis.source.loop_exits import LoopExit, left_by
from distdoctor.diagnosis.source.rank_guard import ENCLOSES
from distdoctor.diagnosis.source.set_order import SetLoop, set_loop_around
from distdoctor.recording.rank_set import named

KEY = "ranks apart"  # of the one fact that checks explain


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
    guard: StackGuard | None

    @property
    def is_under_rank(self) -> bool:
        """Whether the odd ones are in a collective that stands under a condition on the rank."""
        makes_group = self.odd[0].doing is Activity.NEW_GROUP
        return self.guard is not None and self.guard.guard.how == ENCLOSES and not makes_group and not self.in_pairs

    @property
    def in_pairs(self) -> bool:
        """Whether it is about a send or a receive."""
        odd, usual = (variant[0].op in IN_PAIRS for variant in (self.odd, self.usual))
        return odd and (usual or not self.tie)

    @property
    def makes_group(self) -> bool:
        return self.odd[0].doing is Activity.NEW_GROUP and (not self.tie or self.counts_differently)

    @property
    def counts_differently(self) -> bool:
        """Whether all of them make a group, under different names: some have made one that others have not."""
        numbers = [variant[0].group_number for variant in self.variants]
        return None not in numbers and len(set(numbers)) > 1

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The two ends of a message for which one side waits while its peer waits in something else; () where there is none."""
        if not self.in_pairs:
            return ()
        waits = [one for one in stack_waits(self.variants) if one.op in IN_PAIRS and one.on]
        return (*waits[0].ranks, *waits[0].on) if waits else ()

    @property
    def is_same_call(self) -> bool:
        """Whether all of them are in one call of one line, with other arguments."""
        same = self.usual[0].call == self.odd[0].call and self.usual[0].site == self.odd[0].site
        return same and not self.counts_differently

    @cached_property
    def set_loop(self) -> SetLoop | None:
        """The loop over a set in which all of them are in one line, for different elements."""
        one, sources = self.odd[0], self.stall.recording.sources
        if not self.is_same_call or not sources:
            return None
        return set_loop_around(sources, one.site, one.call, known_to_differ=True)

    def of_one_loop(self, remedy: str, change: str, loop: SetLoop) -> Finding:
        """The finding where none is the odd one, because each goes through the set in an order of its own."""
        ranks = tuple(sorted(s.rank for variant in self.variants for s in variant))
        return replace(
            self.finding(remedy, change),
            title=f"wait in {self.odd[0].call} for different elements of the set `{shorten(loop.text, 60, placeholder='...')}`, "
            "which each process goes through in an order of its own",
            ranks=ranks,
            confidence=LIKELY,
            undecided=False,
            place=loop.loop,
            places=(Place(loop.loop, ranks, "goes through the set"), *self.stall.places()),
            why="each process hashes texts in its own way unless PYTHONHASHSEED is set, so their sets have different orders",
        )

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
        return Finding(
            title=_title(self.usual, odd, self.tie or bool(self.ends)),
            ranks=self.ends or tuple(ranks),
            confidence=POSSIBLE if several or self.stall.stacks.elsewhere or self._may_be_apart else LIKELY,
            undecided=self.tie or several or bool(self.ends),
            place=odd[0].site,
            places=(
                *self.stall.places(*(s for variant in self.variants[1:] for s in variant)),
                *decision_places(self.decision, {variant[0].site for variant in self.variants}),
            ),
            evidence=self._evidence(tipped_by),
            why=self._why(),
            prescriptions=(Prescription(remedy, change=self.left.cure if self.left else change + self._decided()),),
            explains=(KEY, *self.stall.explains),
        )

    @property
    def _may_be_apart(self) -> bool:
        """Whether ranks may be in calls of groups of their own on the way, as seen once: three ranks make no mesh."""
        return self.stall.is_one_moment and len(self.stall.standings) > MOST_WITHOUT_MESH

    def _evidence(self, tipped_by: tuple[str, ...]) -> dict[str, object]:
        """What they are in, and where their waits close a ring, that ring edge by edge."""
        shown = self.variants[:8]
        found: dict[str, object] = {
            "calls": {named(s.rank for s in v): f"{v[0].call}{v[0].peer} at {line_of(v[0])}" for v in shown}
        }
        if self.cycle:
            found["cycle"] = [wait.words for wait in self.cycle]
        if self.guard is not None:
            found["tipped_by"] = [self.guard.guard.word, *tipped_by]
        return found

    def _why(self) -> str:
        guard = self.guard.guard if self.guard is not None else None
        if self.counts_differently:
            return (
                "groups are named by a running number, and members find each other by that name: not every rank has made all "
                "groups before this one"
            )
        if self.ends:
            why = "a send needs its receive: either the one end is missing, or the other is too much"
        elif self.guard is not None and guard is not None:
            why = f"{at(self.guard.site)} is reached only under `{guard.test}` (line {guard.line}), which depends on the rank"
        elif self.tie:
            why = "equally many ranks are in each call: the stacks do not show which ones are wrong; a recording does"
        else:
            why = "fewer ranks are in this call than in the other; what they did before was not recorded"
        if self.stall.is_one_moment:
            why = f"{why}; {self.stall.looks}"
        if self.left:
            return f"{why}; {self.left.effect}"
        return f"{why}; most likely they diverged at {self.decision.words}" if self.decision else why

    def _decided(self) -> str:
        if self.decision is None or not self.decision.decides_alone:
            return ""
        return f"; decide once for all ranks what `{self.decision.test}` ({at(self.decision.site)}) tests"


def sides_of(stall: Stall, variants: tuple[Variant, ...]) -> Sides:
    usual, odd = variants[0], variants[1]
    tie = len(usual) == len(odd)
    of_odd, of_usual = (guard_between(stall.recording.sources, *pair) for pair in ((odd, usual), (usual, odd)))
    if tie and of_usual is not None and of_odd is None:
        return Sides(stall, variants, odd, usual, tie=False, guard=of_usual)
    tie = tie and not (of_odd is not None and of_usual is None)
    return Sides(stall, variants, usual, odd, tie, of_odd)


def _title(usual: Variant, odd: Variant, tie: bool) -> str:
    if tie:
        return f"disagree: {_who_waits(usual)}, {_who_waits(odd)}"
    return f"took a different path: {_who_waits(odd)}, {_who_waits(usual)}"


def _who_waits(variant: Variant) -> str:
    """`ranks 0-1 wait in all_reduce (train.py:41)`."""
    ranks, words = [s.rank for s in variant], variant[0].words
    return f"{named(ranks)} {words if len(ranks) == 1 else words.replace('waits', 'wait', 1)} ({line_of(variant[0])})"
