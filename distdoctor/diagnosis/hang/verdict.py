"""What happened to the job's communication: the facts that checks on hangs ask for, computed once. Which check explains an
incident is for the checks to say.

Whatever parts first in time is the cause: a group whose members issue different calls, a rank that fails or leaves while
others need it, a ring of waits. All that comes later is a consequence and no incident. What hangs nobody (another reduction,
swapped calls of equal size) is an incident of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import ClassVar, Self

from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.facts.collectives import Collectives, GroupCalls, Track
from distdoctor.diagnosis.facts.timeline import Timeline
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, POSSIBLE, Confidence
from distdoctor.diagnosis.hang import alignment
from distdoctor.diagnosis.hang.alignment import CallDivergence, Variant, divergences
from distdoctor.diagnosis.hang.call_chains import Parted
from distdoctor.diagnosis.hang.crossed_threads import crossed_calls
from distdoctor.diagnosis.hang.decision import JOIN, decision_of
from distdoctor.diagnosis.hang.device_progress import DeviceProgress, WaitEdge
from distdoctor.diagnosis.hang.earlier_divergence import (
    not_joined,
    where_lines_part,
    where_one_was_added,
    where_order_parts,
)
from distdoctor.diagnosis.hang.ending import ENDED, LEFT, RAISED, Ending, end_of, endings, failures
from distdoctor.diagnosis.hang.group_making import (
    Making,
    NamedApart,
    Stalled,
    each_its_own,
    made_alone,
    named_apart,
    stalled,
)
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import KINDS, IncidentKind
from distdoctor.diagnosis.hang.point_to_point import Pairs
from distdoctor.diagnosis.hang.program import (
    ADDED,
    REPLACED,
    SKIPPED,
    SWAPPED,
    CallEdit,
    ExecutedStatements,
    Symbol,
    departure,
    deviation,
    is_repeated,
    issued_from,
    line_of,
    symbol,
)
from distdoctor.diagnosis.hang.silence import judge, silence
from distdoctor.diagnosis.hang.standstill import stalls
from distdoctor.diagnosis.hang.uneven import Uneven, uneven_passes
from distdoctor.diagnosis.hang.wait_for import Deadlock, Wait, deadlock, gone_for_good, probable_waits, waits
from distdoctor.diagnosis.source.deciding import deciding_condition
from distdoctor.diagnosis.source.rank_choice import singled_out
from distdoctor.diagnosis.source.rank_guard import ENCLOSES, LEAVES, Guard, alternatives, guards_of_one
from distdoctor.recording.recording import Call, Recording, SourceLine
from distdoctor.recording.trace.events import NewGroupDone
from distdoctor.recording.trace.layout import POINT_TO_POINT, ROOTED, CallFlag, Op

# Operations in which every member needs every other one; of the rooted ones a member may be through before others have come.
FROM_ALL = frozenset(Op) - POINT_TO_POINT - ROOTED - {Op.UNKNOWN}


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
    incidents: tuple[Incident, ...] = field(default=())

    @classmethod
    def of(cls, recording: Recording) -> Self:
        facts = derived(Collectives, recording)
        pairs = Pairs.of(facts)
        ended = endings(facts)
        live = recording.job.running
        parted = tuple(d for group in facts.groups for d in divergences(group, live=live))
        found = waits(facts, pairs, [d for d in parted if d.differs != alignment.REDUCTION], ended)
        dead = deadlock(facts, found, gone_for_good(ended))
        progress = DeviceProgress.in_dumps(recording)
        known = cls(facts, pairs, ended, parted, tuple(found), dead, tuple(uneven_passes(recording)), progress)
        completed = (_completed(known, number, one) for number, one in enumerate(_Judge(known).incidents()))
        return replace(known, incidents=tuple(completed))

    def of_kind(self, *kinds: IncidentKind) -> Iterator[Incident]:
        """The incidents of these kinds."""
        return (incident for incident in self.incidents if incident.kind in kinds)

    def unpaired(self, receive: Call) -> tuple[Call, ...]:
        """What the rank that a receive awaits has sent, or waits for, instead."""
        return tuple((*self.pairs.unreceived_of(receive), *self.pairs.unsent_to(receive))[:4])

    @property
    def recording(self) -> Recording:
        return self.facts.recording

    def timeline(self, rank: int) -> Timeline:
        return self.facts.timelines[rank]

    def waiting_seconds(self, call: Call) -> float:
        """For how long a call has been open; 0 when it is not, or when nobody was there to see."""
        now = 0 if call.returned_ns else self.facts.now_ns(self.timeline(call.rank))
        return max(0.0, (now - call.entered_ns) / 1e9) if now else 0.0


class _CallsBeyond:
    """What the members of a group issued beyond a number of calls. Of thousands of ranks most have issued equally many."""

    def __init__(self, group: GroupCalls, is_needed: Callable[[Call], bool]) -> None:
        self._tracks, self._is_needed = list(group.tracks.values()), is_needed
        self._most = max((track.count for track in self._tracks), default=0)
        self._known: dict[int, tuple[int, Call] | None] = {}

    def first_after(self, count: int) -> tuple[int, Call] | None:
        """The first call of number `count` + 1 that its rank needed, and when it was issued; None where there is none."""
        if count >= self._most:
            return None
        if count not in self._known:
            calls = ((t, t.call(count + 1)) for t in self._tracks if t.count > count and self._needs_more(t, count))
            needed = ((t, call) for t, call in calls if call is not None)
            timed = ((t.timeline.wall(call.entered_ns), call) for t, call in needed)
            self._known[count] = min(timed, key=lambda one: (one[0], one[1].rank), default=None)
        return self._known[count]

    def _needs_more(self, track: Track, count: int) -> bool:
        """Whether a rank needed one of its calls beyond a number. One that needs all and came back had them all."""
        for number in range(count + 1, track.count + 1):
            call = track.call(number)
            if call is None or not _has_come_back(call):
                return call is not None and self._is_needed(call)
            if call.op in FROM_ALL:
                return False
        return False


def _has_come_back(call: Call) -> bool:
    """Whether a blocking call is known to have returned without an exception."""
    blocks = not call.flags & (CallFlag.ASYNC | CallFlag.NATIVE | CallFlag.FAILED)
    return bool(call.returned_ns) and blocks


class _Judge:
    """Weighs what is known about one job and decides what the cause was."""

    def __init__(self, known: Verdict) -> None:
        self.known = known
        self.facts = known.facts
        self.sources = known.recording.sources

    def incidents(self) -> Iterator[Incident]:
        silent = [d for d in self.known.divergences if d.differs == alignment.REDUCTION]
        for parted in silent:
            yield self._parted(parted)
        causes = sorted(self._causes(), key=lambda one: (one.at_ns or 1 << 63, KINDS.index(one.kind), one.ranks))
        apart = named_apart(self.facts)
        if apart is not None and self._follows(causes):
            yield self._named_apart(apart)
            return
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
        yield from self._unreceived()
        yield from self._crashed_on_the_way_out()
        unnoticed = list(self._swapped_unnoticed())
        quiet = [] if silent or unnoticed else list(self._by_silence())
        yield from unnoticed or quiet
        if not (silent or unnoticed or quiet):
            yield from self._only_echoes()

    def _only_echoes(self) -> Iterator[Incident]:
        """Ranks failed for lack of a peer, and what happened to the peer is not on record. Where somebody ended the job from
        outside, that is what happened: hosts are asked one after the other. Patience that ran out is older than that."""
        victims = sorted(
            (e for e in self.known.endings.values() if e.victim), key=lambda e: (e.at_ns or 1 << 63, e.rank)
        )
        job = self.known.recording.job
        ended_from_outside = bool(job.interrupted) and bool(victims) and not victims[0].timed_out
        if victims and not job.running and not ended_from_outside:
            awaited = self._awaited(victims)
            yield Incident(
                IncidentKind.GAVE_UP if awaited else IncidentKind.ECHOED,
                awaited,
                victims[0].at_ns,
                POSSIBLE,
                ending=victims[0],
                also=tuple(victims[1:]),
            )

    def _awaited(self, victims: list[Ending]) -> tuple[int, ...]:
        """The ranks that were in no call, and there until the launcher ended them, when the others' patience ended: nobody was
        lost. () where a rank may have been."""
        endings, world = self.known.endings, range(self.known.recording.world_size)
        others = set(world) - {one.rank for one in victims}
        if not all(one.timed_out for one in victims) or any(
            rank not in endings or endings[rank].how != ENDED or rank not in self.facts.timelines for rank in others
        ):
            return ()
        return tuple(rank for rank in sorted(others) if not self.known.timeline(rank).sitting)

    def _causes(self) -> Iterator[Incident]:
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

    def _parted(self, parted: CallDivergence) -> Incident:
        if parted.differs != alignment.REDUCTION:
            surplus = not_joined(parted, self.sources)
            if surplus is not None:
                return self._not_joined(*surplus)
            parted = self._where_lines_part(parted)
        usual, odd = parted.variants[0], parted.variants[1]
        suspect, by, by_source = self._suspect(parted) if parted.is_tie else (1, CERTAIN, False)
        choice, by_choice = self._chosen(parted) if suspect is None else (None, None)
        suspect, by = (by_choice, LIKELY) if suspect is None else (suspect, by)
        if suspect == 0:
            usual, odd = odd, usual
        is_tie = suspect is None
        ranks = parted.odd_ranks if is_tie or not parted.is_tie else odd.ranks
        incident = Incident(
            IncidentKind.DIVERGED,
            ranks,
            parted.at_ns,
            divergence=parted,
            odd=odd.call,
            usual=usual.call,
            group=parted.group,
            waiting=self._waiting_in(parted.group),
            is_tie=is_tie,
            choice=choice,
            guard=choice,
            sides=CERTAIN if is_tie else by,
        )
        explained = self._explained(replace(incident, departure=self._departure(incident)))
        return replace(explained, hint=explained.rank_word) if by_source or choice is not None else explained

    def _where_lines_part(self, parted: CallDivergence) -> CallDivergence:
        """The divergence, or the beginning of it; two branches of one condition are no parting."""
        earlier = where_lines_part(parted)
        usual, odd = earlier.variants[0], earlier.variants[1]
        if self._branch(odd.call.site, usual.call.site) is not None:
            return parted
        return where_order_parts(parted) if earlier is parted else earlier

    def _not_joined(self, parted: CallDivergence, issued: Variant, answered: Variant) -> Incident:
        """A collective inside join() that it does not stand in for: the ranks that have run out of inputs are the odd ones, and
        the line to mend is that of the others."""
        return Incident(
            IncidentKind.STRAYED,
            answered.ranks,
            parted.at_ns,
            divergence=parted,
            departure=CallEdit(ADDED),
            odd=issued.call,
            usual=answered.call,
            group=parted.group,
            waiting=self._waiting_in(parted.group),
            hint=JOIN,
        )

    def _suspect(self, parted: CallDivergence) -> tuple[int | None, Confidence, bool]:
        """Which of two equal sides left the path of the other, how sure that is, and whether a word of the source told it; None
        when nothing tells.

        What it used to do itself tells best, then whose loader ran out, then a condition on the rank in the source. Sides are
        equal too where members of whom nothing is on record may make the smaller one the larger; that is not likely of a few.
        """
        by_rank = self._is_under_a_guard
        if unseen := parted.group.unseen:
            by_rank = partial(self._is_outvoted, unseen)
        for left_the_path in (
            _receives_another_list,
            self._strays,
            self._ran_out,
            by_rank,
            self._strayed_before,
        ):
            suspects = [
                number for number in (0, 1) if left_the_path(parted.variants[number], parted.variants[1 - number])
            ]
            if len(suspects) == 1:
                by = CERTAIN if left_the_path == self._ran_out else LIKELY
                return suspects[0], by, left_the_path == by_rank
        sides = [len(variant.ranks) for variant in parted.variants[:2]]
        most_are_seen = sum(sides) > len(parted.group.unseen)
        return (1, LIKELY, False) if sides[0] > sides[1] and most_are_seen else (None, CERTAIN, False)

    def _chosen(self, parted: CallDivergence) -> tuple[Guard | None, int | None]:
        """The expression in the source that gives one of two equal sides another value, and which side: that is no proof."""
        for number in (0, 1):
            mine, other = parted.variants[number], parted.variants[1 - number]
            same = mine.call.site == other.call.site
            choice = singled_out(self.sources, mine.call.site, mine.ranks, other.ranks) if same else None
            if choice is not None:
                return choice, number
        return None, self._under_a_condition(parted)

    def _under_a_condition(self, parted: CallDivergence) -> int | None:
        """The side of the one rank that the deciding condition names, when it asks for the rank."""
        one, other = (variant.call.site for variant in parted.variants[:2])
        decision = deciding_condition(self.sources, one, other) if one != other and self.sources else None
        named = (
            decision.rank_named if decision is not None and "__del__" not in (one.function, other.function) else None
        )
        sides = [number for number, variant in enumerate(parted.variants) if variant.ranks == (named,)]
        return sides[0] if sides else None

    def _strays(self, mine: Variant, other: Variant) -> bool:
        expected = ExecutedStatements.of(self.known.timeline(mine.call.rank), mine.call.seq).expected()
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

    def _is_outvoted(self, unseen: Sequence[int], mine: Variant, other: Variant) -> bool:
        """Whether a condition on the rank tells that these ranks are the fewer ones, counted with those of whom nothing is on
        record; where both sides have as many, whether it is theirs."""
        found = self._guard_of(mine.call, other.call, mine.ranks, other.ranks)
        if found is None or not found[0].on_rank:
            return False
        guard, call = found
        through = [guard.lets_through(rank) for rank in unseen]
        if None in through:
            return False
        joined = sum(reached is (call is mine.call) for reached in through)
        sizes = len(mine.ranks) + joined, len(other.ranks) + len(unseen) - joined
        return sizes[0] < sizes[1] or (sizes[0] == sizes[1] and self._is_under_a_guard(mine, other))

    def _departure(self, incident: Incident) -> CallEdit:
        assert incident.odd is not None
        assert incident.usual is not None
        theirs, mine = self.known.timeline(incident.usual.rank), self.known.timeline(incident.odd.rank)
        past = ExecutedStatements.of(theirs, incident.usual.seq)
        if past.distance(symbol(incident.usual), symbol(incident.odd)) is None:
            own = ExecutedStatements.of(mine, incident.odd.seq)
            past = own if len(own.symbols) > len(past.symbols) else past
        again = is_repeated(mine, incident.odd)
        return departure(
            issued_from(theirs, incident.usual.seq), issued_from(mine, incident.odd.seq), past, is_repeated=again
        )

    def _explained(self, incident: Incident) -> Incident:
        """The incident with what can have parted the ranks: an uneven pass, a condition in the source."""
        odd, usual = incident.odd, incident.usual
        assert odd is not None
        assert usual is not None
        branch = self._branch(odd.site, usual.site)
        same_place = odd.site == usual.site or branch is not None or incident.how == REPLACED
        same_place = same_place or (self._as_ever(odd) and self._as_ever(usual))
        incident = replace(
            incident,
            uneven=self._uneven_behind(incident),
            branch=branch,
            in_place=incident.how != SKIPPED and same_place,
        )
        if incident.replaces:
            return incident
        guard = self._guard_of(odd, usual, incident.ranks, self._others(incident))
        return incident if guard is None else _under(incident, *guard)

    def _as_ever(self, call: Call) -> bool:
        """Whether the rank always went through this line at this point: then it is the arguments that are wrong."""
        expected = ExecutedStatements.of(self.known.timeline(call.rank), call.seq).expected()
        return expected is not None and line_of(expected) == line_of(symbol(call))

    def _others(self, incident: Incident) -> tuple[int, ...]:
        assert incident.divergence is not None
        return tuple(r for variant in incident.divergence.variants for r in variant.ranks if r not in incident.ranks)

    def _branch(self, one: SourceLine, other: SourceLine) -> Guard | None:
        """The condition of which two lines are the two branches."""
        return alternatives(self.sources, one, other)

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
        return list(guards_of_one(self.sources, site, but_not_of))

    def _uneven_behind(self, incident: Incident) -> Uneven | None:
        """The uneven pass because of which the ranks parted: the odd ones ran out before."""
        for uneven in self.known.uneven:
            blamed = set(uneven.short) & set(incident.ranks)
            if blamed and uneven.at_ns <= incident.at_ns and set(uneven.short) <= set(incident.ranks):
                return uneven
        return None

    def _waiting_in(self, group: GroupCalls) -> tuple[Wait, ...]:
        return tuple(wait for wait in self.known.waits if wait.group is group)

    # --- a rank is gone ----------------------------------------------------------------------------------------------------

    def _failed(self, first: Ending) -> Incident:
        """A rank that failed by itself; ranks that failed with the same words are named with it."""

        def alike(other: Ending) -> bool:
            return (other.how, other.kind, other.site, other.signal) == (
                first.how,
                first.kind,
                first.site,
                first.signal,
            )

        same = [e for e in failures(self.known.endings) if e.rank != first.rank and alike(e)]
        return Incident(
            IncidentKind.FAILED,
            (first.rank, *(e.rank for e in same)),
            first.at_ns,
            ending=first,
            also=tuple(same),
            waiting=self._held_by({first.rank}),
        )

    def _left(self) -> Iterator[Incident]:
        """Ranks that left in order while others need them."""
        for ending in self.known.endings.values():
            if ending.how != LEFT or ending.rank not in self.facts.timelines:
                continue
            missed = self._missed_by(ending.rank)
            if missed is None:
                continue
            needed_at, usual, group = missed
            added = where_one_was_added(group, usual.rank, ending.rank) if group is not None else None
            if added is not None:
                yield self._parted(added)
                continue
            incident = Incident(
                IncidentKind.LEFT,
                (ending.rank,),
                max(needed_at, ending.at_ns),
                ending=ending,
                usual=usual,
                group=group,
                waiting=self._held_by({ending.rank}),
            )
            yield self._surplus(incident) or replace(incident, uneven=self._uneven_behind(incident))

    def _crashed_on_the_way_out(self) -> Iterator[Incident]:
        """Ranks whose script had ended, and whose process died of itself after that."""
        crashed = [one for one in self.known.endings.values() if one.how == LEFT and one.signal]
        for number in sorted({one.signal for one in crashed}):
            alike = [one for one in crashed if one.signal == number]
            yield Incident(
                IncidentKind.DIED_LATE,
                tuple(one.rank for one in alike),
                min(one.at_ns for one in alike),
                ending=alike[0],
            )

    def _surplus(self, left: Incident) -> Incident | None:
        """The incident seen the other way: few ranks issued a call that is no part of their routine, and most never did."""
        call, group = left.usual, left.group
        if call is None or group is None:
            return None
        issued = tuple(rank for rank, track in sorted(group.tracks.items()) if track.count >= call.number)
        if 2 * len(issued) > len(group.tracks):
            return None
        past = ExecutedStatements.of(self.known.timeline(call.rank), call.seq)
        if past.knows(symbol(call)) or past.expected() is None:
            return None
        guard = self._guard_of(call, replace(call, site=SourceLine()), issued, left.ranks)
        if 2 * len(issued) == len(group.tracks) and guard is None:
            return None  # one of two called it and one has left: that it was called for the first time proves nothing
        incident = replace(
            left, kind=IncidentKind.STRAYED, ranks=issued, odd=call, usual=None, departure=CallEdit(ADDED)
        )
        return incident if guard is None else _under(incident, *guard)

    def _missed_by(self, rank: int) -> tuple[int, Call, GroupCalls | None] | None:
        """The first call of another rank that can never be completed because this rank has left: (when, the call, its group)."""
        found: list[tuple[int, Call, GroupCalls | None]] = []
        for group, beyond in self._calls_beyond.get(rank, ()):
            if (first := beyond.first_after(group.tracks[rank].count)) is not None:
                found.append((*first, group))
        for received in self._received_from.get(rank, ()):
            if rank in self.known.pairs.awaits(received) and self._is_needed(received):
                found.append((self.known.timeline(received.rank).wall(received.entered_ns), received, None))
        return min(found, key=lambda item: (item[2] is None, item[0], item[1].rank), default=None)

    def _is_needed(self, call: Call) -> bool:
        """Whether a rank could not go on without a call that was never answered: it is inside, or failed because of it.

        It could where it caught the exception and was not ended by it, and where it left in order itself: then a thread was
        inside (a heartbeat), or nobody waited for the handle.
        """
        ending = self.known.endings.get(call.rank)
        if ending is not None and ending.how == LEFT:
            return False
        has_failed = ending is not None and (ending.victim or ending.is_failure)
        return has_failed or not call.flags & CallFlag.FAILED

    @cached_property
    def _calls_beyond(self) -> dict[int, list[tuple[GroupCalls, _CallsBeyond]]]:
        """Of each rank, its groups."""
        found: dict[int, list[tuple[GroupCalls, _CallsBeyond]]] = defaultdict(list)
        for group in self.facts.groups:
            beyond = _CallsBeyond(group, self._is_needed)
            for rank in group.tracks:
                found[rank].append((group, beyond))
        return dict(found)

    @cached_property
    def _received_from(self) -> dict[int, list[Call]]:
        """Of each sender, the last receive of each lane."""
        found: dict[int, list[Call]] = defaultdict(list)
        for lane, received in self.known.pairs.receives.items():
            if received:
                found[lane[1]].append(received[-1])
        return dict(found)

    def _held_by(self, ranks: set[int]) -> tuple[Wait, ...]:
        return tuple(wait for wait in self.known.waits if set(wait.on) & ranks)

    # --- a ring of waits ---------------------------------------------------------------------------------------------------

    def _closed_ring(self, dead: Deadlock, confidence: Confidence) -> Iterator[Incident]:
        if not dead.rings:
            return
        cycle = dead.rings[0]
        rings = tuple(ring for ring in dead.rings if _statements(ring) == _statements(cycle))
        if not all(wait.is_certain for wait in cycle):
            confidence = LIKELY
        at_ns = max(self.known.timeline(wait.call.rank).wall(wait.call.entered_ns) for wait in cycle)
        everybody = tuple(sorted({rank for ring in rings for wait in ring for rank in wait.ranks}))
        incident = Incident(
            IncidentKind.RING, everybody, at_ns, confidence, cycle=cycle, rings=rings, waiting=dead.dead
        )
        yield self._strayed(incident) or incident

    def _rings_in_dumps(self) -> Iterator[Incident]:
        """Rings of calls that devices are at: the host that enqueued them has gone on."""
        if self.known.progress is None:
            return
        for ring in self.known.progress.rings:
            waits = tuple(self._wait_of(edge) for edge in ring.edges)
            if all(waits):
                cycle = tuple(wait for wait in waits if wait is not None)
                yield from self._closed_ring(Deadlock(cycle, {}, (cycle,)), LIKELY)

    def _wait_of(self, edge: WaitEdge) -> Wait | None:
        """The call of an edge as a wait; None when its row is forgotten."""
        log, pending = self.known.timeline(edge.rank).log, edge.call.pending
        for row in log.calls[log.calls["entered_ns"] == pending.created_ns]:
            call = log.call(row)
            if call.group == edge.call.group.name and call.op.word == pending.operation:
                group = self.facts.group_of(call)
                return Wait((call,), (edge.on,), group, is_certain=False, is_posted=edge.is_posted)
        return None

    def _strayed(self, incident: Incident) -> Incident | None:
        """The incident, when one side of a ring of waits left its own routine: it skipped a call that somebody else in the ring
        waits in, or made one that it never made before."""
        off: list[tuple[Wait, Wait, tuple[int, ...], Call, Symbol]] = []
        for at, wait in enumerate(incident.cycle):
            before = incident.cycle[at - 1]  # waits for some of the ranks in `wait`
            needed = tuple(rank for rank in wait.ranks if rank in before.on)
            found = deviation(self.known.timeline(needed[0])) if needed else None
            if found is not None:
                off.append((wait, before, needed, *found))
        if len(off) != 1:
            return None
        wait, before, needed, odd, expected = off[0]
        past = ExecutedStatements.of(self.known.timeline(before.call.rank), before.call.seq)
        gap = past.distance(expected, symbol(odd)) if symbol(before.call) == expected else None
        strayed = replace(
            incident,
            ranks=needed,
            odd=odd,
            usual=before.call,
            group=before.group,
            cycle=(),
            rings=(),
            waiting=(before,),
        )
        departed = CallEdit(SKIPPED, gap) if gap else CallEdit(ADDED)
        strayed = replace(strayed, kind=IncidentKind.STRAYED, departure=departed, sides=LIKELY)  # only its habit tells
        strayed = replace(strayed, uneven=self._uneven_behind(strayed))
        guard = self._guard_of(odd, before.call, needed, before.ranks)
        return strayed if guard is None else _under(strayed, *guard)

    def _misfit(self, pair: tuple[Call, Call]) -> Incident:
        sent, got = pair
        at_ns = self.known.timeline(got.rank).wall(max(got.entered_ns, 1))
        return Incident(IncidentKind.MISFITTED, (got.rank, sent.rank), at_ns, usual=got, pair=pair)

    def _unreceived(self) -> Iterator[Incident]:
        """What was sent and never received, when every rank has ended in order and was seen to its end."""
        recording, endings = self.known.recording, self.known.endings
        ended = [rank for rank in range(recording.world_size) if rank in endings and endings[rank].how == LEFT]
        whole = not any(trouble.silenced for trouble in recording.troubles)
        if not whole or len(ended) < recording.world_size or len(self.facts.timelines) < recording.world_size:
            return
        for sent, count in self.known.pairs.lost():
            at_ns = self.known.timeline(sent.rank).wall(max(sent.entered_ns, 1))
            yield Incident(IncidentKind.UNRECEIVED, (sent.rank, sent.root), at_ns, LIKELY, odd=sent, lost_sends=count)

    def _passed_by_new_group(self) -> Iterator[Incident]:
        """Some ranks make a group, and others wait for them elsewhere."""
        found = self._in_the_making()
        if found is not None and found.is_proven:
            begun = [self.known.timeline(call.rank).wall(call.begun_ns) for call in found.inside]
            waits = [self.known.timeline(call.rank).wall(call.entered_ns) for call in found.instead]
            incident = Incident(
                IncidentKind.PASSED_BY,
                found.odd,
                max(min(begun), min(waits)),
                waiting=self._held_by(set(found.odd)),
                is_closed=True,
            )
            yield self._weighed(incident, found)

    def _follows(self, causes: list[Incident]) -> bool:
        """Whether what stopped the job may come from ranks that talk to others than they think: all but an exception of a rank's
        own code."""
        if not causes:
            return silence(self.facts, self.known.endings) is not None
        first = causes[0]
        return first.kind is not IncidentKind.FAILED or first.ending is None or first.ending.how != RAISED

    def _named_apart(self, apart: NamedApart) -> Incident:
        alone = made_alone(Making(timeline) for timeline in self.facts.timelines.values())
        begun = [
            self.known.timeline(rank).wall(one.at_ns)
            for rank in apart.members
            for one in self.known.timeline(rank).log.noted(NewGroupDone)
            if tuple(sorted(one.members)) == apart.members
        ]
        ranks = alone.ranks if alone is not None else apart.members
        return Incident(IncidentKind.PASSED_BY, ranks, min(begun), is_tie=alone is None)

    def _in_the_making(self) -> Stalled | None:
        """The group that some ranks make without others; None where each side makes one of its own."""
        living = {rank: timeline for rank, timeline in self.facts.timelines.items() if rank not in self.known.endings}
        return stalled(self.facts, living) if each_its_own(self.facts, living) is None else None

    def _weighed(self, incident: Incident, found: Stalled) -> Incident:
        """The incident of a group in the making, where as many ranks came as stayed away: the one that a condition on the rank
        names is the odd one, else there is none."""
        if not found.is_tie:
            return incident
        both = tuple(sorted({*found.makers, *found.absent}))
        decision = decision_of(self.facts, self.known.pairs, incident)
        named = decision.rank_named if decision is not None else None
        if named in both and len(both) == 2:
            return replace(incident, ranks=(named,), sides=LIKELY)
        return replace(incident, ranks=both, is_tie=True)

    # --- nobody hangs, or nothing is proven --------------------------------------------------------------------------------

    def _swapped_unnoticed(self) -> Iterator[Incident]:
        """Two calls of equal size in the other order on one rank: every sum is taken over different tensors."""
        from distdoctor.diagnosis.hang.swapped import swapped_calls

        for group in self.facts.groups:
            for swap in swapped_calls(group, self.sources):
                incident = Incident(
                    IncidentKind.SWAPPED,
                    swap.ranks,
                    swap.at_ns,
                    LIKELY,
                    usual=swap.usual,
                    odd=swap.odd,
                    group=group,
                    departure=CallEdit(SWAPPED),
                    called=swap.called,
                )
                yield self._named_by_condition(incident) if len(group.tracks) == 2 else incident
                return

    def _named_by_condition(self, swapped: Incident) -> Incident:
        """The swap of two ranks: the one that the deciding condition names is the odd one, else there is none."""
        odd, usual = swapped.odd, swapped.usual
        assert odd is not None
        assert usual is not None
        decision = deciding_condition(self.sources, odd.site, usual.site) if odd.site != usual.site else None
        named = decision.rank_named if decision is not None else None
        if named == odd.rank:
            return replace(swapped, ranks=(named,))
        if named == usual.rank:
            called = (swapped.called[1], swapped.called[0]) if swapped.called is not None else None
            return replace(swapped, ranks=(named,), odd=usual, usual=odd, called=called)
        return replace(swapped, is_tie=True)

    def _by_silence(self) -> Iterator[Incident]:
        """What the job's own rhythm says, when nothing can be proven."""
        known = self.known
        quiet = silence(self.facts, known.endings)
        if quiet is None:
            return
        found = [*known.waits, *probable_waits(self.facts, known.pairs, known.waits, known.endings)]
        dead = deadlock(self.facts, found, gone_for_good(known.endings), unseen_threads=False)
        ring = next(iter(self._closed_ring(dead, LIKELY)), None)
        if ring is not None:
            yield replace(ring, silence=quiet)
            return
        judged = judge(self.facts, quiet, found, known.endings)
        if judged is not None:
            kind, ranks, confidence = judged
            incident = Incident(kind, ranks, quiet.since_ns, confidence, silence=quiet, waiting=tuple(found))
            making = self._in_the_making() if kind is IncidentKind.PASSED_BY else None
            yield incident if making is None else self._weighed(incident, making)


def _receives_another_list(mine: Variant, other: Variant) -> bool:
    """Whether it is about a list of objects that the other side gives out: the receivers' has to be as long."""
    call = mine.call
    return alignment.is_object_list(call) and call.root not in mine.ranks and call.root in other.ranks


def _completed(known: Verdict, number: int, one: Incident) -> Incident:
    """The incident with what follows from it: that ranks wait for ever may be certain where it is not who is the odd one."""
    confidence = one.confidence if one.sides is CERTAIN or one.confidence is POSSIBLE else one.sides
    stands = stalls(one, known.facts, known.endings, known.deadlock)
    decision = decision_of(known.facts, known.pairs, one)
    callers = Parted.of(known.facts, one.odd, one.usual).by_callers if one.odd is not None else ()
    told = replace(one, stalls=stands, key=_key(number, one), decision=decision, callers=callers, confidence=confidence)
    return _with_hint(replace(told, crossed=crossed_calls(known.facts, one)))


def _statements(ring: Iterable[Wait]) -> set[tuple[Op, SourceLine]]:
    """What the ranks of a ring wait in, and where."""
    return {(wait.call.op, wait.call.site) for wait in ring}


def _with_hint(incident: Incident) -> Incident:
    """That the job stands still may be proven; whose fault it is, by a name in the source, is at most likely."""
    return replace(incident, confidence=incident.likely) if incident.hint else incident


def _key(number: int, incident: Incident) -> str:
    failed = incident.ending if incident.kind is IncidentKind.FAILED else None
    return end_of(failed.rank) if failed is not None else f"incident {number}"


def _under(incident: Incident, guard: Guard, call: Call) -> Incident:
    """The incident with the condition that decides about one of its calls."""
    return replace(
        incident,
        guard=guard,
        guarded=call,
        guard_at=SourceLine(call.site.path, guard.line, guard.function or "<module>"),
    )


def _separates(guard: Guard, through: Iterable[int], kept_out: Iterable[int]) -> bool:
    """Whether a condition can have let the first ranks through and kept the second ones out."""
    if any(guard.lets_through(rank) is False for rank in through):
        return False
    return not any(guard.lets_through(rank) is True for rank in kept_out) or not guard.on_rank
