"""Ranks wait for each other in a ring, or one of the ring has strayed from its own routine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from distdoctor.diagnosis.facts.timeline import Timeline, is_pairwise
from distdoctor.diagnosis.finding import LIKELY, Confidence
from distdoctor.diagnosis.hang.decision import decision_of, led_to_by
from distdoctor.diagnosis.hang.device_progress import FEWEST_TO_OUTVOTE, StuckCall, WaitEdge
from distdoctor.diagnosis.hang.hang_facts import HangFacts
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.incidents.guarding import find_guard, put_under
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.point_to_point import ANYBODY
from distdoctor.diagnosis.hang.program import (
    ADDED,
    SKIPPED,
    UNCLEAR,
    CallEdit,
    ExecutedStatements,
    Symbol,
    deviation,
    deviations,
    is_statement,
    issued_from,
    symbol,
)
from distdoctor.diagnosis.hang.uneven import find_uneven_pass
from distdoctor.diagnosis.hang.wait_for import Deadlock, Wait
from distdoctor.recording.recording import Call, SourceLine
from distdoctor.recording.trace.layout import Op

MOST_WAITS = 64  # beside a ring, that are looked at
LOOKED_BACK = 4096  # calls of a rank


def judge_ring(known: HangFacts, dead: Deadlock, confidence: Confidence) -> Incident | None:
    """The incident of the first ring of a deadlock, with the rings of other ranks in the same lines."""
    if not dead.rings:
        return None
    cycle = dead.rings[0]
    rings = tuple(ring for ring in dead.rings if _statements(ring) == _statements(cycle))
    if not all(wait.is_certain for wait in cycle):
        confidence = LIKELY
    at_ns = max(known.timeline(wait.call.rank).wall(wait.call.entered_ns) for wait in cycle)
    everybody = tuple(sorted({rank for ring in rings for wait in ring for rank in wait.ranks}))
    incident = Incident(IncidentKind.RING, everybody, at_ns, confidence, cycle=cycle, rings=rings, waiting=dead.dead)
    return (
        _unsent(known, incident)
        or _owed(known, incident, dead)
        or _strayed(known, incident)
        or _gone_on_alone(known, incident)
        or _left_out(known, incident)
        or incident
    )


def find_rings_in_dumps(known: HangFacts) -> Iterator[Incident]:
    """Rings of calls that devices are at: the host that enqueued them has gone on."""
    if known.progress is None:
        return
    for ring in known.progress.rings:
        waits = tuple(_wait_of(known, edge) for edge in ring.edges)
        if all(waits):
            cycle = tuple(wait for wait in waits if wait is not None)
            incident = judge_ring(known, Deadlock(cycle, {}, (cycle,)), LIKELY)
            if incident is not None:
                yield incident


def _wait_of(known: HangFacts, edge: WaitEdge) -> Wait | None:
    """The call of an edge as a wait; None when its row is forgotten."""
    call = _call_at(known, edge.call)
    if call is None:
        return None
    return Wait((call,), (edge.on,), known.facts.group_of(call), is_certain=False, is_posted=edge.is_posted)


def _call_at(known: HangFacts, at: StuckCall) -> Call | None:
    """The row of a call that a device is at; None when it is forgotten."""
    log, pending = known.timeline(at.rank).log, at.pending
    for row in log.calls[log.calls["entered_ns"] == pending.created_ns]:
        call = log.call(row)
        if call.group == at.group.name and call.op.word == pending.operation:
            return call
    return None


def _unsent(known: HangFacts, incident: Incident) -> Incident | None:
    """The incident, when one side of a ring of waits, and not the other, left out the end of a message that it used to come to
    there, of which somebody else in the ring has the other end."""
    owing: list[tuple[Wait, tuple[int, ...], Call, Call]] = []
    for before, needed, _ in _needed(incident):
        found = _left_out_message(known, needed[0], before.call)
        if found is not None:
            owing.append((before, needed, *found))
    if len(owing) != 1:
        return None
    before, needed, odd, message = owing[0]
    if _is_met_by_another(known, odd):
        return None
    # Clients of a server end when each has had enough, which tells nothing of the others.
    alone = _alone(known, needed, before) if not _serves(known, needed[0]) else ()
    ranks = alone or tuple(sorted({*needed, *before.ranks}))
    return replace(
        incident, kind=IncidentKind.UNSENT, ranks=ranks, is_tie=not alone, odd=odd, usual=before.call, left_out=message,
        group=before.group, cycle=(), rings=(), waiting=(before,), sides=LIKELY,
    )  # fmt: skip


def _needed(incident: Incident) -> Iterator[tuple[Wait, tuple[int, ...], Wait]]:
    """Of each wait of a ring: the one before, which waits for some of its ranks, these, and itself."""
    for at, wait in enumerate(incident.cycle):
        before = incident.cycle[at - 1]
        needed = tuple(rank for rank in wait.ranks if rank in before.on)
        if needed:
            yield before, needed, wait


def _strayed(known: HangFacts, incident: Incident) -> Incident | None:
    """The incident, when one side of a ring of waits left its own routine: it skipped a call that somebody else in the ring
    waits in, or made one that it never made before."""
    off: list[tuple[Wait, tuple[int, ...], Wait, Call, Symbol]] = []
    for before, needed, wait in _needed(incident):
        found = deviation(known.timeline(needed[0]))
        if found is not None:
            off.append((before, needed, wait, *found))
    if len(off) != 1:
        return None
    before, needed, wait, odd, expected = off[0]
    if _is_met_by_another(known, odd):
        return None
    strayed = replace(
        incident, kind=IncidentKind.STRAYED, ranks=needed, odd=odd, usual=before.call, group=before.group, cycle=(), rings=(),
        waiting=(before,), sides=LIKELY,  # only its habit tells
    )  # fmt: skip
    if _have_most_gone_on(known, odd, before):
        group = known.facts.group_of(odd)
        return replace(
            strayed,
            ranks=before.ranks,
            odd=before.call,
            usual=odd,
            group=group,
            waiting=(wait,),
            departure=CallEdit(ADDED),
        )
    past = ExecutedStatements.of(known.timeline(before.call.rank), before.call.seq)
    gap = past.distance(expected, symbol(odd)) if symbol(before.call) == expected else None
    if not gap:
        strayed = replace(strayed, ranks=_that_added(known, odd) or needed)
    strayed = replace(strayed, departure=CallEdit(SKIPPED, gap) if gap else CallEdit(ADDED))
    strayed = replace(strayed, uneven=find_uneven_pass(known.uneven, strayed.ranks, strayed.at_ns))
    guard = find_guard(known.sources, odd, before.call, needed, before.ranks)
    if guard is not None:
        return put_under(strayed, *guard)
    # where all of them send, or all receive, that cannot end whatever they did before: a habit alone blames nobody
    return None if incident.is_one_way and any(wait.call == odd for wait in incident.cycle) else strayed


def _owed(known: HangFacts, incident: Incident, dead: Deadlock) -> Incident | None:
    """The incident, when somebody beside the ring waits for a message that one of the ring has left out, and this one for
    somebody else as well: a server that owes an answer, and hears no one else any more."""
    inside = [wait for wait in incident.cycle if is_pairwise(wait.call)]
    for wait, before in product(inside, dead.dead[:MOST_WAITS]):
        if is_pairwise(before.call) and {*wait.ranks} & {*before.on} and {*before.ranks} & {*wait.on}:
            found = _unsent(known, replace(incident, cycle=(before, wait), rings=()))
            if found is not None:
                return found
    return None


def _have_most_gone_on(known: HangFacts, odd: Call, waits: Wait) -> bool:
    """Whether all but those who wait for a message have come to the collective at which it is not sent or received, and most of
    them left their routine for it: these alone have taken another turn. Who comes there by routine tells nothing."""
    group = known.facts.group_of(odd) if not is_pairwise(odd) else None
    if group is None or group.unseen or _serves(known, odd.rank):  # one client may be forgotten, whatever the others do
        return False
    missing = {rank for rank, track in group.tracks.items() if track.count < odd.number}
    if missing != {*waits.ranks}:
        return False
    parted = [deviation(known.timeline(rank)) for rank in group.members if rank not in missing]
    left = sum(one is not None and (one[0].group, one[0].number) == (odd.group, odd.number) for one in parted)
    return 2 * left > len(group.members)


def _is_met_by_another(known: HangFacts, odd: Call) -> bool:
    """Whether a message that is new to the routine of its one end is new to the other's as well: a schedule that both have
    changed, as where there are more micro-batches."""
    if not is_pairwise(odd) or odd.root not in known.facts.timelines:
        return False
    ends, way = (
        (known.pairs.receives, (odd.rank, odd.root)) if odd.op is Op.SEND else (known.pairs.sends, (odd.root, odd.rank))
    )
    other = next((call for call in ends.get((odd.group, *way), []) if call.number == odd.number), None)
    theirs = deviation(known.timeline(odd.root)) if other is not None else None
    return other is not None and theirs is not None and theirs[0].seq <= other.seq


def _alone(known: HangFacts, strayed: tuple[int, ...], waits: Wait) -> tuple[int, ...]:
    """Who of the two is alone with what it did, among all that pass messages on: who waits, if most have left their routine in
    this round as the other has, as where one stage of a pipeline counts the micro-batches of a last, smaller batch otherwise.
    () where there are no others: that a rank left its routine does not tell whether it had to."""
    others = _in_one_pipeline(known, waits.call.rank) - {*strayed, *waits.ranks}
    if not others:
        return ()
    changed = [rank for rank in others if _has_changed(known, rank, waits)]
    most_changed = len(strayed) + len(changed) > len(waits.ranks) + len(others) - len(changed)
    return waits.ranks if most_changed else strayed


def _has_changed(known: HangFacts, rank: int, waits: Wait) -> bool:
    """Whether a rank has left its routine, and not for a loop of receives or sends that it is still in behind those that wait."""
    found = deviation(known.timeline(rank))
    if found is None:
        return False
    since = [symbol(call) for call in issued_from(known.timeline(rank), found[0].seq)]
    is_in_loop = len({*since}) == 1 or since.count(since[-1]) > 1
    return not (is_in_loop and _waits_behind(known, rank, waits))


def _waits_behind(known: HangFacts, rank: int, waits: Wait) -> bool:
    """Whether a rank waits for the same kind of message as they do, from them or from one that waits so for them: it goes by as
    many as they."""
    for _ in known.facts.timelines:
        call = next(iter(known.timeline(rank).sitting), None) if rank in known.facts.timelines else None
        if call is None or call.op is not waits.call.op:
            return False
        if call.root in waits.ranks:
            return True
        rank = call.root
    return False


def _in_one_pipeline(known: HangFacts, rank: int) -> set[int]:
    """The ranks that messages of this one come to, or come from, by way of others as well."""
    neighbours = defaultdict[int, set[int]](set)
    for _, sender, receiver in known.pairs.sends:
        neighbours[sender].add(receiver)
        neighbours[receiver].add(sender)
    found, new = {rank}, [rank]
    while new:
        new = [other for one in new for other in neighbours[one] - found]
        found.update(new)
    return found & known.facts.timelines.keys()


def _left_out_message(known: HangFacts, rank: int, waits: Call) -> tuple[Call, Call] | None:
    """(what a rank did instead, the last message of the statement that it left out), where that is what another one waits for."""
    for odd, expected in reversed(list(deviations(known.timeline(rank)))):
        message = _last_message(known, expected, waits, odd)
        if message is not None:
            return odd, message
    return None


def _serves(known: HangFacts, rank: int) -> bool:
    """Whether a rank receives from anybody."""
    return any(lane[1:] == (ANYBODY, rank) for lane in known.pairs.receives)


def _last_message(known: HangFacts, expected: Symbol, waits: Call, odd: Call) -> Call | None:
    """The last end of a message, by the statement `expected`, whose other ends are in the lane of what waits: of a receive the
    last send, of a send the last receive. None where that statement is no such end, or where a send stands in the place of a
    receive, without that others came just before it: then two ends of an exchange send at once."""
    if waits.op is Op.RECV:
        ends = known.pairs.sends.get((waits.group, waits.root, waits.rank), [])
    elif waits.op is Op.SEND:
        lanes = ((waits.group, sender, waits.root) for sender in (waits.rank, ANYBODY))
        ends = sorted((end for lane in lanes for end in known.pairs.receives.get(lane, [])), key=lambda end: end.seq)
        if odd.op is Op.SEND and not (ends and ends[-1].seq + 1 == odd.seq):
            return None
    else:
        return None
    return next((call for call in reversed(ends) if is_statement(call, expected)), None)


def _that_added(known: HangFacts, odd: Call) -> tuple[int, ...]:
    """The ranks that have issued a call that is not of the routine, where they are the fewer of its group; else ()."""
    group = known.facts.group_of(odd)
    came = [rank for rank, track in group.tracks.items() if track.count >= odd.number] if group is not None else []
    return (
        tuple(sorted(came)) if group is not None and not is_pairwise(odd) and 2 * len(came) < len(group.members) else ()
    )


def _gone_on_alone(known: HangFacts, incident: Incident) -> Incident | None:
    """The incident, when one rank of a ring left out what another waits for in it, or took the wrong group; or when the few
    that wait in a call are the odd ones, because more ranks of that group went on as the other did."""
    if any(wait.group is None or is_pairwise(wait.call) for wait in incident.cycle):
        return None
    missing = _missing_from_one(incident.cycle)
    found = missing or _alone_in_one(incident.cycle)
    if found is None:
        return None
    wait, before = found
    strayed = replace(
        incident,
        kind=IncidentKind.STRAYED,
        ranks=wait.ranks,
        odd=wait.call,
        usual=before.call,
        group=before.group,
        cycle=(),
        rings=(),
        waiting=(before,),
        departure=CallEdit(UNCLEAR),
        sides=LIKELY,
    )
    came = _that_came(before)
    if missing is None or len(_past_it(known, wait, before)) <= len(came):
        return strayed
    return replace(strayed, ranks=came, odd=before.call, usual=wait.call, waiting=(wait,), departure=CallEdit(ADDED))


def _left_out(known: HangFacts, incident: Incident) -> Incident | None:
    """The incident, when no order was swapped in a ring of two: whoever is at the one call has left out the other one, as the
    steps before or the source tell."""
    if len(incident.cycle) != 2 or any(wait.group is None or is_pairwise(wait.call) for wait in incident.cycle):
        return None
    for first, second in (incident.cycle, incident.cycle[::-1]):
        if _is_at_times_alone(known, first.call, second.call) or _is_under_a_condition(known, incident, first, second):
            sides = tuple(sorted({*first.ranks, *second.ranks}))
            few = len(second.ranks) < len(first.ranks)
            return replace(
                incident, kind=IncidentKind.STRAYED, ranks=second.ranks if few else sides, is_tie=not few, odd=second.call,
                usual=first.call, group=first.group, cycle=(), rings=(), waiting=(first,), departure=CallEdit(SKIPPED),
                sides=LIKELY,
            )  # fmt: skip
    return None


def _is_under_a_condition(known: HangFacts, incident: Incident, first: Wait, second: Wait) -> bool:
    """Whether a question that ranks answer for themselves leads to the first call alone, and the second one comes either way."""
    decision = decision_of(known.facts, known.pairs, incident)
    return (
        decision is not None
        and decision.decides_alone
        and led_to_by(known.facts, decision, first.call)
        and not led_to_by(known.facts, decision, second.call)
    )


def _is_at_times_alone(known: HangFacts, first: Call, second: Call) -> bool:
    """Whether both sides have always issued the first statement before the second in a step, and at times the second alone."""
    orders = [_orders(known.timeline(call.rank), first, second) for call in (first, second)]
    in_order = all(_IN_ORDER in own and _REVERSED not in own for own in orders)
    return in_order and any(_ALONE in own for own in orders) and first.step == second.step


_IN_ORDER, _REVERSED, _ALONE = "first, second", "second, first", "second"


def _orders(timeline: Timeline, first: Call, second: Call) -> set[str]:
    """In what orders a rank has issued two statements in the steps before this one: in order, reversed, the second one alone."""
    statements = {(first.op, first.site): "first", (second.op, second.site): "second"}
    by_step: dict[int, list[str]] = defaultdict(list)
    for call in map(timeline.log.call, timeline.log.calls[-LOOKED_BACK:]):
        if call.step < first.step and (call.op, call.site) in statements:
            by_step[call.step].append(statements[call.op, call.site])
    return {", ".join(issued) for issued in by_step.values() if "second" in issued or len(issued) > 1}


def _that_came(wait: Wait) -> tuple[int, ...]:
    """The members that have issued a call."""
    assert wait.group is not None
    return tuple(sorted(rank for rank, track in wait.group.tracks.items() if track.count >= wait.call.number))


def _past_it(known: HangFacts, wait: Wait, before: Wait) -> tuple[int, ...]:
    """The members of the group of `before` that have not issued its call, and stand in the same statement as the ranks of
    `wait`: they have gone on like these, each in its own group."""
    assert before.group is not None
    came, found = _that_came(before), []
    for rank in before.group.members if known.progress is not None else ():
        assert known.progress is not None
        front = known.progress.fronts.get(rank)
        at = _call_at(known, front) if rank not in came and front is not None else None
        if at is not None and (at.op, at.site, at.shape) == (wait.call.op, wait.call.site, wait.call.shape):
            found.append(rank)
    return tuple(found)


def _missing_from_one(cycle: Sequence[Wait]) -> tuple[Wait, Wait] | None:
    """(what the odd rank is at, what is waited for in vain): all but one of the calls of the ring have been issued by whoever is
    waited for, and only devices are not there yet. Then the one that was not issued is what was left out."""
    missing = [at for at, wait in enumerate(cycle) if not wait.is_posted]
    return (cycle[(missing[0] + 1) % len(cycle)], cycle[missing[0]]) if len(missing) == 1 < len(cycle) else None


def _alone_in_one(cycle: Sequence[Wait]) -> tuple[Wait, Wait] | None:
    """The same, when nobody else of a larger group has come to the call of one rank, and most members of the other groups are at
    theirs. Two groups that are used in two orders leave nobody alone."""
    alone, attended = [], []
    for at, wait in enumerate(cycle):
        assert wait.group is not None
        come = sum(track.count >= wait.call.number for track in wait.group.tracks.values())
        if come == 1 and len(wait.group.members) > FEWEST_TO_OUTVOTE:
            alone.append(at)
        elif 2 * come >= len(wait.group.members):
            attended.append(at)
    return (cycle[alone[0]], cycle[alone[0] - 1]) if len(alone) == 1 and len(attended) == len(cycle) - 1 else None


def _statements(ring: Iterable[Wait]) -> set[tuple[Op, SourceLine]]:
    """What the ranks of a ring wait in, and where."""
    return {(wait.call.op, wait.call.site) for wait in ring}
