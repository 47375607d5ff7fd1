"""What happened to the job's communication: one event, one code. Computed once; each check picks its own kind out of it.

Whatever parts first in time is the cause: a group whose members issue different calls, a rank that fails or leaves while
others need it, a ring of waits. All that comes later is a consequence and no event. What hangs nobody (another reduction,
swapped calls of equal size) is an event of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from distdoctor.diagnosis.facts.collectives import Collectives, GroupCalls
from distdoctor.diagnosis.facts.timeline import Timeline
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, POSSIBLE, Confidence, Stalls
from distdoctor.diagnosis.hang import alignment
from distdoctor.diagnosis.hang.alignment import CallDivergence, Variant, divergences
from distdoctor.diagnosis.hang.device_progress import DeviceProgress, Edge
from distdoctor.diagnosis.hang.earlier_divergence import not_joined, where_lines_part
from distdoctor.diagnosis.hang.ending import LEFT, Ending, endings, failures
from distdoctor.diagnosis.hang.group_making import stalled
from distdoctor.diagnosis.hang.point_to_point import Pairs
from distdoctor.diagnosis.hang.program import (
    ADDED,
    REPLACED,
    SKIPPED,
    SWAPPED,
    UNCLEAR,
    CallEdit,
    Program,
    Symbol,
    departure,
    deviation,
    is_repeated,
    issued_from,
    line_of,
    symbol,
)
from distdoctor.diagnosis.hang.silence import IdleTime, judge, silence
from distdoctor.diagnosis.hang.standstill import stalls
from distdoctor.diagnosis.hang.uneven import Uneven, uneven_passes
from distdoctor.diagnosis.hang.wait_for import Deadlock, Wait, deadlock, gone_for_good, probable_waits, waits
from distdoctor.diagnosis.source.deciding import Decision, deciding_condition, deciding_value
from distdoctor.diagnosis.source.rank_choice import singled_out
from distdoctor.diagnosis.source.rank_guard import ENCLOSES, LEAVES, Guard, alternatives, guards_at, statement_at
from distdoctor.recording.recording import Call, Recording, SourceLine
from distdoctor.recording.trace.layout import POINT_TO_POINT, Op

BY_WHAT_DIFFERS = {
    alignment.ROOT: "DD106",
    alignment.DTYPE: "DD104",
    alignment.SHAPE: "DD103",
    alignment.REDUCTION: "DD105",
}
_SAVES = (
    "state_dict",
    "full_tensor",
    "dcp.save",
    "checkpoint.save",
    "save_checkpoint",
    "save_model",
    "save_pretrained",
)


@dataclass(frozen=True)
class Event:
    """One thing that went wrong, with everything that its check needs to put it into words.

    `ranks`: the odd ones out, the most suspect first. `odd` is what they did instead, `usual` what the others did; `guarded`
    is the one of the two that `guard` decides about. `at_ns` is wall time. What does not apply is left out.
    """

    code: str
    ranks: tuple[int, ...]
    at_ns: int
    confidence: Confidence = CERTAIN
    divergence: CallDivergence | None = None
    departure: CallEdit | None = None
    odd: Call | None = None
    usual: Call | None = None
    guard: Guard | None = None
    guarded: Call | None = None
    guard_at: SourceLine = field(default_factory=SourceLine)
    ending: Ending | None = None
    also: tuple[Ending, ...] = ()
    uneven: Uneven | None = None
    group: GroupCalls | None = None
    waiting: tuple[Wait, ...] = ()
    cycle: tuple[Wait, ...] = ()
    silence: IdleTime | None = None
    pair: tuple[Call, Call] | None = None
    unpaired: tuple[Call, ...] = ()
    is_tie: bool = False
    is_closed: bool = False  # ranks wait for each other in calls that are no collectives
    stalls: Stalls = Stalls.NO
    decision: Decision | None = None  # what in the source most likely let the ranks part


@dataclass(frozen=True)
class Verdict:
    """The fact that every check on hangs asks for."""

    streams: ClassVar[frozenset[str]] = frozenset({"collectives", "progress"})
    facts: Collectives
    pairs: Pairs
    endings: dict[int, Ending]
    divergences: tuple[CallDivergence, ...]
    waits: tuple[Wait, ...]
    deadlock: Deadlock
    uneven: tuple[Uneven, ...]
    progress: DeviceProgress | None = None  # of dumps
    events: tuple[Event, ...] = field(default=())

    @classmethod
    def of(cls, recording: Recording) -> Self:
        facts = Collectives.of(recording)
        pairs = Pairs.of(facts)
        ended = endings(facts)
        live = recording.job.running
        parted = tuple(d for group in facts.groups for d in divergences(group, live=live))
        found = waits(facts, pairs, [d for d in parted if d.differs != alignment.REDUCTION], ended)
        dead = deadlock(facts, found, gone_for_good(ended))
        progress = DeviceProgress.in_dumps(recording)
        known = cls(facts, pairs, ended, parted, tuple(found), dead, tuple(uneven_passes(recording)), progress)
        events = (
            replace(event, stalls=stalls(known, event), decision=decision_of(known, event))
            for event in _Judge(known).events()
        )
        return replace(known, events=tuple(events))

    def told(self, code: str) -> Iterator[Event]:
        """The events that go by this code."""
        return (event for event in self.events if event.code == code)

    @property
    def recording(self) -> Recording:
        return self.facts.recording

    def timeline(self, rank: int) -> Timeline:
        return self.facts.timelines[rank]

    def waiting_seconds(self, call: Call) -> float:
        """For how long a call has been open; 0 when it is not, or when nobody was there to see."""
        now = 0 if call.returned_ns else self.facts.now_ns(self.timeline(call.rank))
        return max(0.0, (now - call.entered_ns) / 1e9) if now else 0.0


class _Judge:
    """Weighs what is known about one job and decides what the cause was."""

    def __init__(self, known: Verdict) -> None:
        self.known = known
        self.facts = known.facts
        self.sources = known.recording.sources

    def events(self) -> Iterator[Event]:
        silent = [d for d in self.known.divergences if d.differs == alignment.REDUCTION]
        for parted in silent:
            yield self._parted(parted)
        causes = sorted(self._causes(), key=lambda event: (event.at_ns or 1 << 63, event.code, event.ranks))
        if causes:
            yield causes[0]
            return
        in_dumps = list(self._rings_in_dumps())
        if in_dumps:
            yield from in_dumps
            return
        for pair in self.known.pairs.misfits():
            yield self._misfit(pair)
            return
        yield from self._crashed_on_the_way_out()
        unnoticed = list(self._swapped_unnoticed())
        quiet = [] if silent or unnoticed else list(self._by_silence())
        yield from unnoticed or quiet
        if not (silent or unnoticed or quiet):
            yield from self._only_echoes()

    def _only_echoes(self) -> Iterator[Event]:
        """Ranks failed for lack of a peer, and what happened to the peer is not on record."""
        victims = sorted(
            (e for e in self.known.endings.values() if e.victim), key=lambda e: (e.at_ns or 1 << 63, e.rank)
        )
        if victims and not self.known.recording.job.running:
            yield Event("DD110", (), victims[0].at_ns, POSSIBLE, ending=victims[0], also=tuple(victims[1:]))

    def _causes(self) -> Iterator[Event]:
        """What can have stopped the job."""
        for parted in self.known.divergences:
            if parted.differs != alignment.REDUCTION:
                yield self._parted(parted)
        first = next(failures(self.known.endings), None)
        if first is not None:
            yield self._failed(first)
        yield from self._left()
        yield from self._closed_ring(self.known.deadlock, CERTAIN)
        yield from self._passed_by_new_group()

    # --- a group parts -----------------------------------------------------------------------------------------------------

    def _parted(self, parted: CallDivergence) -> Event:
        if parted.differs != alignment.REDUCTION:
            surplus = not_joined(parted, self.sources)
            if surplus is not None:
                return self._not_joined(*surplus)
            parted = self._where_lines_part(parted)
        usual, odd = parted.variants[0], parted.variants[1]
        suspect = self._suspect(parted) if parted.is_tie else 1
        choice, by_choice = self._chosen(parted) if suspect is None else (None, None)
        suspect = by_choice if suspect is None else suspect
        if suspect == 0:
            usual, odd = odd, usual
        is_tie = suspect is None
        ranks = parted.odd_ranks if is_tie or not parted.is_tie else odd.ranks
        event = Event(
            "DD102",
            ranks,
            parted.at_ns,
            divergence=parted,
            odd=odd.call,
            usual=usual.call,
            group=parted.group,
            waiting=self._waiting_in(parted.group),
            is_tie=is_tie,
            guard=choice,
            confidence=LIKELY if choice is not None else CERTAIN,
        )
        event = replace(event, departure=self._departure(event))
        return self._classified(event, several=len(parted.variants) > 2)

    def _where_lines_part(self, parted: CallDivergence) -> CallDivergence:
        """The divergence, or the beginning of it; two branches of one condition are no parting."""
        earlier = where_lines_part(parted)
        usual, odd = earlier.variants[0], earlier.variants[1]
        return parted if self._branch(odd.call.site, usual.call.site) is not None else earlier

    def _not_joined(self, parted: CallDivergence, issued: Variant, answered: Variant) -> Event:
        """A collective inside join() that it does not stand in for."""
        return Event(
            "DD101",
            issued.ranks,
            parted.at_ns,
            divergence=parted,
            departure=CallEdit(ADDED),
            odd=issued.call,
            usual=answered.call,
            group=parted.group,
            waiting=self._waiting_in(parted.group),
        )

    def _suspect(self, parted: CallDivergence) -> int | None:
        """Which of two equal sides left the path of the other, None when nothing tells.

        What it used to do itself tells best, then whose loader ran out, then a condition on the rank in the source.
        """
        for left_the_path in (self._strays, self._ran_out, self._is_under_a_guard, self._strayed_before):
            suspects = [
                number for number in (0, 1) if left_the_path(parted.variants[number], parted.variants[1 - number])
            ]
            if len(suspects) == 1:
                return suspects[0]
        return None

    def _chosen(self, parted: CallDivergence) -> tuple[Guard | None, int | None]:
        """The expression in the source that gives one of two equal sides another value, and which side: that is no proof."""
        for number in (0, 1):
            mine, other = parted.variants[number], parted.variants[1 - number]
            source = self.sources.get(mine.call.site.path, "") if mine.call.site == other.call.site else ""
            choice = singled_out(source, mine.call.site.line, mine.ranks, other.ranks) if source else None
            if choice is not None:
                return choice, number
        return None, None

    def _strays(self, mine: Variant, other: Variant) -> bool:
        expected = Program.of(self.known.timeline(mine.call.rank), mine.call.seq).expected()
        return expected is not None and expected == symbol(other.call) and expected != symbol(mine.call)

    def _strayed_before(self, mine: Variant, other: Variant) -> bool:
        """Whether these ranks had left their own routine already, in a call on another group."""
        found = deviation(self.known.timeline(mine.call.rank))
        return found is not None and found[0].seq <= mine.call.seq

    def _ran_out(self, mine: Variant, other: Variant) -> bool:
        short = {rank for uneven in self.known.uneven for rank in uneven.short}
        return set(mine.ranks) <= short and not set(other.ranks) & short

    def _is_under_a_guard(self, mine: Variant, other: Variant) -> bool:
        """Whether these ranks came to their call, or got past the others' call, by a condition on the rank."""
        found = self._guard_of(mine.call, other.call, mine.ranks, other.ranks)
        if found is None or not found[0].on_rank:
            return False
        guard, call = found
        return guard.how == ENCLOSES if call is mine.call else guard.how == LEAVES

    def _departure(self, event: Event) -> CallEdit:
        assert event.odd is not None
        assert event.usual is not None
        theirs, mine = self.known.timeline(event.usual.rank), self.known.timeline(event.odd.rank)
        past = Program.of(theirs, event.usual.seq)
        if past.distance(symbol(event.usual), symbol(event.odd)) is None:
            own = Program.of(mine, event.odd.seq)
            past = own if len(own.symbols) > len(past.symbols) else past
        again = is_repeated(mine, event.odd)
        return departure(
            issued_from(theirs, event.usual.seq), issued_from(mine, event.odd.seq), past, is_repeated=again
        )

    def _classified(self, event: Event, several: bool) -> Event:
        """The event with the one code that explains it best."""
        odd, usual, departed = event.odd, event.usual, event.departure
        assert odd is not None
        assert usual is not None
        assert departed is not None
        assert event.divergence is not None
        uneven = self._uneven_behind(event)
        if uneven is not None:
            return replace(event, code="DD111", uneven=uneven, ranks=uneven.short, is_tie=False)
        how, differs = departed.how, event.divergence.differs
        same_line = odd.site == usual.site
        if differs == alignment.REDUCTION:
            return replace(event, code="DD105")
        if how == SWAPPED:
            return replace(event, code="DD107")
        branch = self._branch(odd.site, usual.site)
        same_place = same_line or branch is not None or how == REPLACED
        same_place = same_place or (self._as_ever(odd) and self._as_ever(usual))
        if how != SKIPPED and differs != alignment.OPERATION and same_place:
            return replace(event, code=BY_WHAT_DIFFERS[differs], guard=branch or event.guard)
        if how != SKIPPED and (same_place or several):
            return replace(event, code="DD102", guard=branch)
        meant = self._meant_for_a_subgroup(event)
        if meant is not None:
            return meant
        guard = self._guard_of(odd, usual, event.ranks, self._others(event))
        if guard is not None:
            event = _under(event, *guard)
            if guard[0].instead and not guard[0].on_rank and how != SKIPPED and guard[1] is odd:
                return replace(event, code="DD102")
        if guard is not None and guard[0].on_rank and guard[0].how == ENCLOSES:
            if self._is_save(odd, usual):
                return replace(event, code="DD125")
            return replace(event, code="DD112")
        return replace(event, code="DD101")

    def _as_ever(self, call: Call) -> bool:
        """Whether the rank always went through this line at this point: then it is the arguments that are wrong."""
        expected = Program.of(self.known.timeline(call.rank), call.seq).expected()
        return expected is not None and line_of(expected) == line_of(symbol(call))

    def _others(self, event: Event) -> tuple[int, ...]:
        assert event.divergence is not None
        return tuple(r for variant in event.divergence.variants for r in variant.ranks if r not in event.ranks)

    def _branch(self, one: SourceLine, other: SourceLine) -> Guard | None:
        """The condition of which two lines are the two branches."""
        source = self.sources.get(one.path, "") if one.path == other.path else ""
        return alternatives(source, one.line, other.line) if source else None

    def _guard_of(
        self, odd: Call, usual: Call, ranks: tuple[int, ...], others: tuple[int, ...]
    ) -> tuple[Guard, Call] | None:
        """The condition that let the odd ranks reach their call, or kept them from the others' call; with that call.

        A condition on the rank is preferred; it must agree with who got through, as far as it can be worked out.
        """
        candidates = [
            *((guard, odd) for guard in self._guards(odd.site, usual.site) if _separates(guard, ranks, others)),
            *((guard, usual) for guard in self._guards(usual.site, odd.site) if _separates(guard, others, ranks)),
        ]
        if not any(guard.on_rank for guard, _ in candidates):
            candidates = [(guard, call) for guard, call in candidates if call is odd and guard.how == ENCLOSES][:1]
        candidates.sort(key=lambda found: (not found[0].on_rank, found[0].how == LEAVES))
        return candidates[0] if candidates else None

    def _guards(self, site: SourceLine, but_not_of: SourceLine) -> list[Guard]:
        """The conditions around a line that are not around the other line as well."""
        source = self.sources.get(site.path, "")
        if not source:
            return []
        shared = (
            {(g.line, g.negated) for g in guards_at(source, but_not_of.line)} if site.path == but_not_of.path else set()
        )
        return [guard for guard in guards_at(source, site.line) if (guard.line, guard.negated) not in shared]

    def _is_save(self, odd: Call, usual: Call) -> bool:
        gathers = {Op.ALL_GATHER, Op.ALL_GATHER_INTO_TENSOR, Op.ALL_GATHER_COALESCED, Op.BROADCAST, Op.GATHER}
        for call in (odd, usual):
            words = statement_at(self.sources.get(call.site.path, ""), call.site.line) + " " + call.site.function
            if call.op in gathers and any(word in words for word in _SAVES):
                return True
        return False

    def _meant_for_a_subgroup(self, event: Event) -> Event | None:
        """The event as a call on the wrong group, when exactly the members of a smaller one issued what no other rank ever did.

        They may be the majority: then the others did not skip the call, they never had one there.
        """
        assert event.divergence is not None
        assert event.departure is not None
        variants, how = event.divergence.variants, event.departure.how
        if len(variants) > 2 or how == SWAPPED:
            return None
        found = []
        for mine, other in (variants, variants[::-1]):
            added = how in (ADDED, UNCLEAR) if mine.call is event.odd else how in (SKIPPED, UNCLEAR)
            subgroup = self._group_of_exactly(mine.ranks, event.divergence.group)
            if added and subgroup is not None and not self._passed(other.ranks, mine.call.site):
                found.append(
                    replace(
                        event,
                        code="DD124",
                        ranks=mine.ranks,
                        odd=mine.call,
                        usual=other.call,
                        group=subgroup,
                        is_tie=False,
                    )
                )
        return found[0] if len(found) == 1 else None

    def _group_of_exactly(self, ranks: tuple[int, ...], larger: GroupCalls) -> GroupCalls | None:
        """The group of these ranks; None where it is one of several alike: replicas that part do so along such groups."""
        if not 1 < len(ranks) < len(larger.members):
            return None
        alike = [group for group in self.facts.groups if len(group.members) == len(ranks)]
        if any(set(ranks).isdisjoint(group.members) for group in alike):
            return None
        return next((group for group in alike if set(group.members) == set(ranks)), None)

    def _passed(self, ranks: Iterable[int], site: SourceLine) -> bool:
        """Whether one of these ranks has a call at this line on record."""
        logs = [self.known.timeline(rank).log for rank in ranks]
        return any(site in {log.site(number) for number in np.unique(log.calls["site"])} for log in logs)

    def _uneven_behind(self, event: Event) -> Uneven | None:
        """The uneven pass because of which the ranks parted: the odd ones ran out before."""
        for uneven in self.known.uneven:
            blamed = set(uneven.short) & set(event.ranks)
            if blamed and uneven.at_ns <= event.at_ns and set(uneven.short) <= set(event.ranks):
                return uneven
        return None

    def _waiting_in(self, group: GroupCalls) -> tuple[Wait, ...]:
        return tuple(wait for wait in self.known.waits if wait.group is group)

    # --- a rank is gone ----------------------------------------------------------------------------------------------------

    def _failed(self, first: Ending) -> Event:
        """A rank that failed by itself; ranks that failed with the same words are named with it."""

        def alike(other: Ending) -> bool:
            return (other.how, other.kind, other.site, other.signal) == (
                first.how,
                first.kind,
                first.site,
                first.signal,
            )

        same = [e for e in failures(self.known.endings) if e.rank != first.rank and alike(e)]
        code = "DD121" if "Expected to have finished reduction in the prior iteration" in first.words else "DD110"
        return Event(
            code,
            (first.rank, *(e.rank for e in same)),
            first.at_ns,
            ending=first,
            also=tuple(same),
            waiting=self._held_by({first.rank}),
        )

    def _left(self) -> Iterator[Event]:
        """Ranks that left in order while others need them."""
        for ending in self.known.endings.values():
            if ending.how != LEFT or ending.rank not in self.facts.timelines:
                continue
            missed = self._missed_by(ending.rank)
            if missed is None:
                continue
            needed_at, usual, group = missed
            event = Event(
                "DD109",
                (ending.rank,),
                max(needed_at, ending.at_ns),
                ending=ending,
                usual=usual,
                group=group,
                waiting=self._held_by({ending.rank}),
            )
            surplus = self._surplus(event)
            if surplus is not None:
                yield surplus
                continue
            uneven = self._uneven_behind(event)
            has_sent = any(lane[1:] == (ending.rank, usual.rank) for lane in self.known.pairs.sends)
            if uneven is not None:
                yield replace(event, code="DD111", uneven=uneven)
            elif group is None and not has_sent:
                yield replace(event, code="DD113", ranks=(usual.rank, ending.rank), unpaired=self._unpaired(usual))
            else:
                yield event

    def _crashed_on_the_way_out(self) -> Iterator[Event]:
        """Ranks whose script had ended, and whose process died of itself after that."""
        crashed = [one for one in self.known.endings.values() if one.how == LEFT and one.signal]
        for number in sorted({one.signal for one in crashed}):
            alike = [one for one in crashed if one.signal == number]
            yield Event("DD130", tuple(one.rank for one in alike), min(one.at_ns for one in alike), ending=alike[0])

    def _surplus(self, left: Event) -> Event | None:
        """The event seen the other way: few ranks issued a call that is no part of their routine, and most never did."""
        call, group = left.usual, left.group
        if call is None or group is None:
            return None
        issued = tuple(rank for rank, track in sorted(group.tracks.items()) if track.count >= call.number)
        if 2 * len(issued) > len(group.tracks):
            return None
        past = Program.of(self.known.timeline(call.rank), call.seq)
        if past.knows(symbol(call)) or past.expected() is None:
            return None
        guard = self._guard_of(call, replace(call, site=SourceLine()), issued, left.ranks)
        event = replace(left, code="DD101", ranks=issued, odd=call, usual=None, departure=CallEdit(ADDED))
        if guard is not None:
            event = _under(event, *guard)
        on_rank = guard is not None and guard[0].on_rank and guard[0].how == ENCLOSES
        return replace(event, code="DD112") if on_rank else event

    def _missed_by(self, rank: int) -> tuple[int, Call, GroupCalls | None] | None:
        """The first call of another rank that can never be completed because this rank has left: (when, the call, its group)."""
        found: list[tuple[int, Call, GroupCalls | None]] = []
        for group in self.facts.groups:
            track = group.tracks.get(rank)
            if track is None:
                continue
            for other in group.tracks.values():
                if other.count > track.count:
                    call = other.call(track.count + 1)
                    if call is not None:
                        found.append((other.timeline.wall(call.entered_ns), call, group))
        for lane, received in self.known.pairs.receives.items():
            if lane[1] == rank and received and rank in self.known.pairs.awaits(received[-1]):
                call = received[-1]
                found.append((self.known.timeline(call.rank).wall(call.entered_ns), call, None))
        return min(found, key=lambda item: (item[2] is None, item[0], item[1].rank), default=None)

    def _held_by(self, ranks: set[int]) -> tuple[Wait, ...]:
        return tuple(wait for wait in self.known.waits if set(wait.on) & ranks)

    # --- a ring of waits ---------------------------------------------------------------------------------------------------

    def _closed_ring(self, dead: Deadlock, confidence: Confidence) -> Iterator[Event]:
        if not dead.cycle:
            return
        if not all(wait.is_certain for wait in dead.cycle):
            confidence = LIKELY
        at_ns = max(self.known.timeline(wait.call.rank).wall(wait.call.entered_ns) for wait in dead.cycle)
        everybody = tuple(sorted({rank for wait in dead.cycle for rank in wait.ranks}))
        event = Event("DD108", everybody, at_ns, confidence, cycle=dead.cycle, waiting=dead.dead)
        in_pairs = [wait for wait in dead.cycle if wait.call.op in POINT_TO_POINT and not wait.is_posted]
        if len(in_pairs) == len(dead.cycle) and len({wait.call.op is Op.SEND for wait in in_pairs}) == 1:
            yield self._strayed(event) or replace(event, code="DD114")
        elif in_pairs:
            pair = next((wait for wait in in_pairs if wait.call.op is not Op.SEND), in_pairs[0])
            receive, ranks = pair.call, (pair.call.rank, *pair.on)
            unpaired = self._unpaired(receive)
            yield self._strayed(event) or replace(event, code="DD113", ranks=ranks, usual=receive, unpaired=unpaired)
        else:
            yield self._strayed(event) or event

    def _rings_in_dumps(self) -> Iterator[Event]:
        """Rings of calls that devices are at: the host that enqueued them has gone on."""
        if self.known.progress is None:
            return
        for ring in self.known.progress.rings:
            waits = tuple(self._wait_of(edge) for edge in ring.edges)
            if all(waits):
                cycle = tuple(wait for wait in waits if wait is not None)
                yield from self._closed_ring(Deadlock(cycle, {}, cycle), LIKELY)

    def _wait_of(self, edge: Edge) -> Wait | None:
        """The call of an edge as a wait; None when its row is forgotten."""
        log, pending = self.known.timeline(edge.rank).log, edge.call.pending
        for row in log.calls[log.calls["entered_ns"] == pending.created_ns]:
            call = log.call(row)
            if call.group == edge.call.group.name and call.op.word == pending.operation:
                group = self.facts.group_of(call)
                return Wait((call,), (edge.on,), group, is_certain=False, is_posted=edge.is_posted)
        return None

    def _strayed(self, event: Event) -> Event | None:
        """The event, when one side of a ring of waits left its own routine: it skipped a call that somebody else in the ring
        waits in, or made one that it never made before."""
        off: list[tuple[Wait, Wait, tuple[int, ...], Call, Symbol]] = []
        for at, wait in enumerate(event.cycle):
            before = event.cycle[at - 1]  # waits for some of the ranks in `wait`
            needed = tuple(rank for rank in wait.ranks if rank in before.on)
            found = deviation(self.known.timeline(needed[0])) if needed else None
            if found is not None:
                off.append((wait, before, needed, *found))
        if len(off) != 1:
            return None
        wait, before, needed, odd, expected = off[0]
        past = Program.of(self.known.timeline(before.call.rank), before.call.seq)
        gap = past.distance(expected, symbol(odd)) if symbol(before.call) == expected else None
        strayed = replace(
            event, ranks=needed, odd=odd, usual=before.call, group=before.group, cycle=(), waiting=(before,)
        )
        strayed = replace(strayed, departure=CallEdit(SKIPPED, gap) if gap else CallEdit(ADDED))
        uneven = self._uneven_behind(strayed)
        if uneven is not None:
            return replace(strayed, code="DD111", uneven=uneven)
        guard = self._guard_of(odd, before.call, needed, before.ranks)
        if guard is not None:
            strayed = _under(strayed, *guard)
        on_rank = guard is not None and guard[0].on_rank and guard[0].how == ENCLOSES
        return replace(strayed, code="DD112" if on_rank else "DD101")

    def _unpaired(self, receive: Call) -> tuple[Call, ...]:
        """What the awaited rank has sent, or waits for, instead."""
        return tuple((*self.known.pairs.unreceived_of(receive), *self.known.pairs.unsent_to(receive))[:4])

    def _misfit(self, pair: tuple[Call, Call]) -> Event:
        sent, got = pair
        at_ns = self.known.timeline(got.rank).wall(max(got.entered_ns, 1))
        return Event("DD113", (got.rank, sent.rank), at_ns, usual=got, pair=pair)

    def _passed_by_new_group(self) -> Iterator[Event]:
        """Some ranks make a group, and others wait for them elsewhere."""
        living = {rank: timeline for rank, timeline in self.facts.timelines.items() if rank not in self.known.endings}
        found = stalled(self.facts, living)
        if found is not None and found.is_proven:
            begun = [self.known.timeline(call.rank).wall(call.begun_ns) for call in found.inside]
            waits = [self.known.timeline(call.rank).wall(call.entered_ns) for call in found.instead]
            yield Event(
                "DD119", found.odd, max(min(begun), min(waits)), waiting=self._held_by(set(found.odd)), is_closed=True
            )

    # --- nobody hangs, or nothing is proven --------------------------------------------------------------------------------

    def _swapped_unnoticed(self) -> Iterator[Event]:
        """Two calls of equal size in the other order on one rank: every sum is taken over different tensors."""
        from distdoctor.diagnosis.hang.swapped import swapped_calls

        for group in self.facts.groups:
            for usual, odd, ranks, at_ns in swapped_calls(group):
                yield Event(
                    "DD107", ranks, at_ns, LIKELY, usual=usual, odd=odd, group=group, departure=CallEdit(SWAPPED)
                )
                return

    def _by_silence(self) -> Iterator[Event]:
        """What the job's own rhythm says, when nothing can be proven."""
        known = self.known
        quiet = silence(self.facts, known.endings)
        if quiet is None:
            return
        found = [*known.waits, *probable_waits(self.facts, known.pairs, known.waits, known.endings)]
        ring = next(iter(self._closed_ring(deadlock(self.facts, found, gone_for_good(known.endings)), LIKELY)), None)
        if ring is not None:
            yield replace(ring, silence=quiet)
            return
        judged = judge(self.facts, quiet, found, known.endings)
        if judged is not None:
            code, ranks, confidence = judged
            yield Event(code, ranks, quiet.since_ns, confidence, silence=quiet, waiting=tuple(found))


def decision_of(known: Verdict, event: Event) -> Decision | None:
    """The condition that most likely sent the ranks to different calls, or gave one call different arguments."""
    sources = known.recording.sources
    one, other = _sides(event)
    if not sources or one is None:
        return None
    others = [] if other is None else [r for r in known.facts.timelines if r not in event.ranks]
    differs = event.divergence.differs if event.divergence is not None else ""
    there = other.site if other is not None else None
    try:
        by_value = deciding_value(sources, one.site, differs) if one.site == there else None
        return by_value or deciding_condition(sources, one.site, there, event.ranks, others)
    except RecursionError:  # generated code
        return None


def _sides(event: Event) -> tuple[Call | None, Call | None]:
    """The calls that ranks are in instead of one another's; the second is None where it is missing altogether."""
    if event.pair is not None:
        return event.pair
    if event.odd is not None:
        return event.odd, event.usual
    if event.cycle:
        first = event.cycle[0].call
        return first, next((wait.call for wait in event.cycle if wait.call.site != first.site), first)
    return event.usual, None


def _under(event: Event, guard: Guard, call: Call) -> Event:
    """The event with the condition that decides about one of its calls."""
    return replace(
        event, guard=guard, guarded=call, guard_at=SourceLine(call.site.path, guard.line, guard.function or "<module>")
    )


def _separates(guard: Guard, through: Iterable[int], kept_out: Iterable[int]) -> bool:
    """Whether a condition can have let the first ranks through and kept the second ones out."""
    if any(guard.lets_through(rank) is False for rank in through):
        return False
    return not any(guard.lets_through(rank) is True for rank in kept_out) or not guard.on_rank
