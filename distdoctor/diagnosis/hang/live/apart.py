"""Ranks that wait for each other in different calls, told by their stacks alone: nobody recorded how they got there.

One of them skipped, added or swapped a collective; which one, only a recording can prove. The majority is taken to be right; a
condition on the rank around one of the lines (`if rank == 0`) decides a tie.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import networkx as nx

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.diagnosis.finding import LIKELY, POSSIBLE, Confidence, Finding, Prescription
from distdoctor.diagnosis.hang.live.rank_activity import Activity, RankActivity
from distdoctor.diagnosis.hang.live.stall import Stall
from distdoctor.diagnosis.source.loop_exits import left_by
from distdoctor.diagnosis.source.rank_guard import ENCLOSES, Guard, guards_of_one
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import Op

IN_CALLS = (Activity.COLLECTIVE, Activity.BACKWARD, Activity.HANDLE, Activity.NEW_GROUP)
Variant = list[RankActivity]
# What the stacks show; each check asks for its own.
LEFT, DIED, CYCLE, GROUP, PAIR, SAVE, CONDITION, ROOT, SKIPPED = (
    "left", "died", "cycle", "group", "pair", "save", "condition", "root", "skipped",
)  # fmt: skip

SAVE_WORD = "state_dict"


@dataclass(frozen=True)
class RanksApart:
    """The fact that ranks wait for each other in different calls, told by their stacks alone."""

    streams: ClassVar[frozenset[str]] = frozenset()
    stall: Stall

    @classmethod
    def of(cls, recording: Recording) -> Self:
        """NotApplicable: nobody has looked at the processes, the job is over, or what was recorded says more."""
        stall = Stall.of(recording)
        if recording.ranks and "collectives" in recording.streams:
            raise NotApplicable("what was recorded says more")
        if not recording.job.running:
            raise NotApplicable("the job does not run any more")
        return cls(stall)

    def told(self, kind: str) -> Iterator[Finding]:
        """The finding, when it is of this kind."""
        return iter(self._found[1] if self._found[0] == kind else ())

    @cached_property
    def _found(self) -> tuple[str, tuple[Finding, ...]]:
        stall = self.stall
        if stall.cut:
            return "", ()  # who is ahead has what the other waits for: the network is dead
        waiting = list(stall.of_kind(*IN_CALLS))
        lost = [s for s in stall.of_kind(Activity.GONE) if s.rank in stall.stacks.absent]
        if waiting and lost and not any(True for _ in stall.of_kind(Activity.INIT)):
            return _left(lost, stall)
        everybody = len(waiting) == len(stall.standings) > 1
        if not everybody or not stall.exceeds_patience(stall.waited_seconds):
            return "", ()
        ring, variants = _ring(waiting), _variants(waiting)
        if ring:
            return CYCLE, (_receives(ring, stall),)
        return _apart(variants, stall) if len(variants) > 1 else ("", ())


def _left(lost: list[RankActivity], standstill: Stall) -> tuple[str, tuple[Finding, ...]]:
    """A rank has no process any more, and others wait."""
    end = standstill.recording.job.ends.get(lost[0].rank)
    in_order = end is not None and end.exit_code == 0
    ranks = tuple(s.rank for s in lost)
    first = standstill.waiting[0]
    why = "how it ended was not seen"
    if in_order:
        why = "the launcher is alive and ends all ranks as soon as one fails: so this one ended in order, with exit code 0"
    in_groups = all(s.names_a_group for s in standstill.waiting)
    if in_groups:
        why += "; whether it is a member of the group that the call was given the stacks do not show"
    left = left_by(standstill.recording.sources, first.site)
    if left:
        why += f"; {left.effect}"
    finding = Finding(
        title=f"has no process any more while {standstill.who_waits}",
        ranks=ranks,
        confidence=POSSIBLE if in_groups else LIKELY,
        place=first.site,
        places=standstill.places(*lost),
        evidence={"waiting_ranks": [s.rank for s in standstill.waiting]},
        why=why,
        prescriptions=(
            Prescription(
                "stay-until-the-end",
                change=left.cure
                if left
                else f"let {named(ranks)} take part in the {first.call} of {_at(first)}, or let all ranks stop together",
            ),
        ),
    )
    return LEFT if in_order else DIED, (finding,)


def _ring(waiting: list[RankActivity]) -> Variant:
    """Ranks that all receive from one another."""
    on = {s.rank: int(s.arguments["src"]) for s in waiting if s.op is Op.RECV and s.arguments.get("src", "").isdigit()}
    receives = nx.DiGraph((rank, source) for rank, source in sorted(on.items()) if source in on)
    try:
        chain = {rank for rank, _ in nx.find_cycle(receives)}
    except nx.NetworkXNoCycle:
        return []
    return [s for s in waiting if s.rank in chain]


def _receives(ring: Variant, standstill: Stall) -> Finding:
    return Finding(
        title="wait for each other: " + ", ".join(f"rank {s.rank} receives{s.peer}" for s in ring[:4]),
        ranks=tuple(s.rank for s in ring),
        confidence=standstill.confidence(*ring),
        place=ring[0].site,
        places=standstill.places(*ring),
        why="every rank receives first, so none gets to send",
        prescriptions=(
            Prescription(
                "batch-isend-irecv", change=f"let one side send first at {_at(ring[0])}, or use dist.batch_isend_irecv"
            ),
        ),
    )


def _variants(waiting: list[RankActivity]) -> list[Variant]:
    """The ranks by what they wait in, the majority first."""
    found: dict[tuple[object, ...], Variant] = {}
    for standing in waiting:
        roots = tuple((k, v) for k, v in sorted(standing.arguments.items()) if k in ("src", "dst") and v.isdigit())
        key = (standing.call, roots if standing.op not in (Op.SEND, Op.RECV) else (), standing.site)
        found.setdefault(key, []).append(standing)
    return sorted(found.values(), key=lambda variant: (-len(variant), variant[0].rank))


def _apart(variants: list[Variant], standstill: Stall) -> tuple[str, tuple[Finding, ...]]:
    usual, odd = variants[0], variants[1]
    tie = len(usual) == len(odd)
    guards = {id(variant): _guard(variant, other, standstill) for variant, other in ((usual, odd), (odd, usual))}
    if tie and guards[id(usual)] is not None and guards[id(odd)] is None:
        usual, odd, tie = odd, usual, False
    elif tie and guards[id(odd)] is not None and guards[id(usual)] is None:
        tie = False
    guard = guards[id(odd)]
    local = None if guard else _condition(odd, usual, standstill) or _condition(usual, odd, standstill)
    sources, sites = standstill.recording.sources, (usual[0].site, odd[0].site)
    left = None if guard or local else left_by(sources, *sites) or (left_by(sources, *reversed(sites)) if tie else None)
    same_call = usual[0].call == odd[0].call and usual[0].site == odd[0].site
    several = len(variants) > 2
    ranks = (
        tuple(sorted(s.rank for v in (variants if tie else variants[1:]) for s in v))
        if tie or several
        else tuple(s.rank for s in odd)
    )
    kind, cure = SKIPPED, "record-the-job"
    in_pairs = [variant[0].op in (Op.SEND, Op.RECV) for variant in (odd, usual)]
    if odd[0].doing is Activity.NEW_GROUP and not tie:
        kind, cure = GROUP, "new-group-on-every-rank"
    elif in_pairs[0] and (not tie or in_pairs[1]):
        kind, cure = PAIR, "pair-send-with-recv"
    elif guard is not None and guard.how == ENCLOSES and SAVE_WORD in odd[0].line + odd[0].call:
        kind, cure = SAVE, "state-dict-on-every-rank"
    elif guard is not None and guard.how == ENCLOSES:
        kind, cure = CONDITION, "call-on-every-rank"
    elif same_call:
        kind, cure = ROOT, "same-root"
    finding = Finding(
        title=_title(usual, odd, tie),
        ranks=ranks,
        confidence=_confidence(tie or several, standstill),
        place=odd[0].site,
        places=standstill.places(*(s for variant in variants[1:] for s in variant)),
        evidence={"calls": {named(s.rank for s in v): f"{v[0].call}{v[0].peer} at {_at(v[0])}" for v in variants[:8]}}
        | ({"tipped_by": [guard.word, *([SAVE_WORD] if kind == SAVE else [])]} if guard is not None else {}),
        why=_why(guard, odd, tie)
        + (f"; {local[0]} is inside `{local[1]}` (line {local[2]})" if local else "")
        + (f"; {left.effect}" if left else ""),
        prescriptions=(
            Prescription(
                cure, change=left.cure if left else _change(cure, guard, odd, usual, sources) + _decided(local)
            ),
        ),
    )
    return kind, (finding,)


def _confidence(unclear: bool, standstill: Stall) -> Confidence:
    return POSSIBLE if unclear or standstill.stacks.elsewhere else LIKELY


def _guard(variant: Variant, other: Variant, standstill: Stall) -> Guard | None:
    """A condition on the rank around this side's line that is not around the other side's."""
    site, others = variant[0].site, other[0].site
    guards = [guard for guard in guards_of_one(standstill.recording.sources, site, others) if guard.on_rank]
    return next((g for g in guards if all(g.lets_through(s.rank) is not False for s in variant)), None)


def _condition(variant: Variant, other: Variant, standstill: Stall) -> tuple[str, str, int] | None:
    """(line of the call, condition, its line): the innermost condition around this side alone; ranks may differ in it."""
    site, others = variant[0].site, other[0].site
    alone = (guard for guard in guards_of_one(standstill.recording.sources, site, others) if guard.how == ENCLOSES)
    found = next(alone, None)
    return (_at(variant[0]), f"if {found.test[:60]}:", found.line) if found is not None else None


def _decided(local: tuple[str, str, int] | None) -> str:
    return f"; if `{local[1]}` is not the same on every rank, broadcast what it tests first" if local else ""


def _title(usual: Variant, odd: Variant, tie: bool) -> str:
    if tie:
        return f"disagree: {_who_waits(usual)}, {_who_waits(odd)}"
    return f"went elsewhere: {_who_waits(odd)}, {_who_waits(usual)}"


def _who_waits(variant: Variant) -> str:
    """`ranks 0-1 wait in all_reduce (train.py:41)`."""
    ranks, words = [s.rank for s in variant], variant[0].words
    return f"{named(ranks)} {words if len(ranks) == 1 else words.replace('waits', 'wait', 1)} ({_at(variant[0])})"


def _why(guard: Guard | None, odd: Variant, tie: bool) -> str:
    if guard is not None:
        return f"line {odd[0].site.line} is reached only under `{guard.test}` (line {guard.line}), which depends on the rank"
    if tie:
        return "as many ranks on either side: the stacks do not say which one is wrong, a recording does"
    return "fewer ranks are there than in the other call; what they did before was not recorded"


def _change(cure: str, guard: Guard | None, odd: Variant, usual: Variant, sources: Mapping[str, str]) -> str:
    if cure == "call-on-every-rank" and guard is not None:
        return (
            f"call the {odd[0].call} of {_at(odd[0])} on every rank: take it out of `{guard.test}` in line {guard.line}"
        )
    if cure == "state-dict-on-every-rank" and guard is not None:
        return f"call {_at(odd[0])} on every rank, before `if {guard.test}:` (line {guard.line}); keep only the writing inside"
    if cure == "new-group-on-every-rank":
        return f"call the {odd[0].call} of {_at(odd[0])} on every rank, members or not, in the same order"
    if cure == "pair-send-with-recv" and usual[0].op in (Op.SEND, Op.RECV):
        return f"give {_end(usual)} and {_end(odd)} the same tag, group and size"
    if cure == "pair-send-with-recv":
        end = "recv" if odd[0].op is Op.SEND else "send"
        return f"give the {odd[0].call} of {_at(odd[0])}{odd[0].peer} its {end} on the other rank, or take it out"
    if cure == "same-root":
        return f"give {odd[0].call} at {_at(odd[0])} the same src/dst on every rank"
    ways = f"{_at(odd[0])} and {_at(usual[0])}"
    return f"compare the ways to {ways}; distdoctor run records every call and names the first that differs"


def _end(variant: Variant) -> str:
    """`the send of train.py:7 (tag 3)`: one end of a message."""
    tag = variant[0].arguments.get("tag", "")
    return f"the {variant[0].call} of {_at(variant[0])}" + (f" (tag {tag})" if tag.isdigit() else "")


def _at(standing: RankActivity) -> str:
    return f"{standing.site.path.rpartition('/')[2]}:{standing.site.line}" if standing.site else "an unknown line"
