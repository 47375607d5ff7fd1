"""Who waits for whom, over all groups and sends, and which of these waits can never end.

A collective waits for all members that have not come, a receive for its sender, a receive from anybody for one of many: an AND/OR
graph. A wait can never end when somebody it needs has gone, or is itself in a wait that can never end. That is provable from
readings of the ranks at different moments: whoever waits at its own moment still waits at the latest one, because what it waits
for had not been issued even then. A rank that is merely behind releases everybody who waits for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from distdoctor.diagnosis.facts.collectives import Collectives, GroupCalls
from distdoctor.diagnosis.facts.timeline import Timeline, is_pairwise
from distdoctor.diagnosis.hang.alignment import REDUCTION, CallDivergence, difference, went_past
from distdoctor.diagnosis.hang.ending import ENDED, Ending
from distdoctor.diagnosis.hang.point_to_point import Pairs
from distdoctor.diagnosis.hang.rings import closed_chains
from distdoctor.diagnosis.source.threads import may_communicate_in_threads
from distdoctor.recording.recording import Call
from distdoctor.recording.trace.layout import Op

SECOND = 1_000_000_000
FOR_EVER = 1 << 62
GLOO = "gloo"
UNBUFFERED_NS = (
    2 * SECOND
)  # what a transport buffers it takes at once; gloo and NCCL wait for the receive instead (2.15)
LAST_CALLS = 64  # of a rank; what it waits for is among them


@dataclass(frozen=True)
class Wait:
    """Ranks inside one and the same call (a collective), or one rank inside a send or receive.

    `on`: the ranks that have not done their part; `any_of`: one of them is enough. `unseen`: members without a recording, who
    may have. `broken`: the members issued different calls, so nobody's coming helps. `is_certain`: False for sends that may
    return without their receive, and for handles, of which nobody saw that they are waited for.
    """

    calls: tuple[Call, ...]
    on: tuple[int, ...]
    group: GroupCalls | None = None
    any_of: bool = False
    unseen: tuple[int, ...] = ()
    broken: CallDivergence | None = None
    is_certain: bool = True
    is_posted: bool = (
        False  # of a send or receive in a dump: the other end is enqueued, and its device has not come to it
    )

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(call.rank for call in self.calls)

    @property
    def call(self) -> Call:
        return self.calls[0]

    @property
    def has_all(self) -> bool:
        """Everybody is there, and still it does not end."""
        return not self.on and not self.unseen and self.broken is None


def waits(
    facts: Collectives, pairs: Pairs, parted: Iterable[CallDivergence], ended: Mapping[int, Ending] | None = None
) -> list[Wait]:
    """Every call that some rank sits in, the collectives put together over their ranks.

    Ranks that were ended, or failed because a peer had gone, count as sitting in the call that they were in then.
    """
    ended = ended or {}
    broken = {id(parting.group): parting for parting in parted}
    inside: dict[tuple[int, int], list[Call]] = defaultdict(list)
    groups: dict[int, GroupCalls] = {}
    found: list[Wait] = []
    for timeline in facts.timelines.values():
        for call in _sat_in(timeline, ended.get(timeline.rank)):
            group = facts.group_of(call)
            if is_pairwise(call):
                found.append(_of_a_pair(call, group, pairs))
            elif group is not None:
                groups[id(group)] = group
                inside[id(group), call.number].append(call)
    for (key, number), calls in inside.items():
        group = groups[key]
        on = tuple(rank for rank, track in group.tracks.items() if track.count < number)
        parting = broken.get(key)
        if parting is not None and (
            parting.number > number or (facts.recording.job.running and _is_over(parting, calls))
        ):
            parting = None
        found.append(
            Wait(tuple(sorted(calls, key=lambda c: c.rank)), tuple(sorted(on)), group, False, group.unseen, parting)
        )
    return sorted(found, key=lambda wait: wait.ranks)


def _is_over(parting: CallDivergence, calls: list[Call]) -> bool:
    """Whether the members went on after they had parted, and those who are inside now agree."""
    differ = (difference(call, calls[0], parting.group.backend) for call in calls)
    return went_past(parting) and not any(found not in ("", REDUCTION) for found in differ)


def _sat_in(timeline: Timeline, ending: Ending | None) -> tuple[Call, ...]:
    if ending is None:
        return timeline.sitting
    if not ending.victim and ending.how != ENDED:
        return ()
    return (timeline.failed_call,) if timeline.failed_call is not None else ()


def probable_waits(
    facts: Collectives, pairs: Pairs, certain: Iterable[Wait], ended: Mapping[int, Ending]
) -> list[Wait]:
    """What ranks that sit in no call most likely wait for when they have been silent for long: the first of their asynchronous
    (or C++'s) calls that is not complete. Waiting for a handle leaves no trace."""
    sitting = {rank for wait in certain for rank in wait.ranks}
    found: list[Wait] = []
    for rank, timeline in facts.timelines.items():
        ending = ended.get(rank)
        if rank in sitting or (ending is not None and not ending.victim and ending.how != ENDED):
            continue
        for row in timeline.log.calls[-LAST_CALLS:]:
            call = timeline.log.call(row)
            group = facts.group_of(call)
            if is_pairwise(call):
                wait = _of_a_pair(call, group, pairs)
            elif group is not None:
                on = tuple(sorted(other for other, track in group.tracks.items() if track.count < call.number))
                wait = Wait((call,), on, group, False, group.unseen)
            else:
                continue
            if wait.on:
                found.append(replace(wait, is_certain=False))
                break
    return found


def gone_for_good(ended: Mapping[int, Ending]) -> frozenset[int]:
    """The ranks that ended of their own accord: whoever waits for them waits in vain. Those that were ended might have come."""
    return frozenset(rank for rank, ending in ended.items() if not ending.victim and ending.how != ENDED)


def _of_a_pair(call: Call, group: GroupCalls | None, pairs: Pairs) -> Wait:
    if pairs.facts.is_renumbered(call):
        return Wait((call,), (), group, unseen=(call.root,), is_certain=False)
    if call.op is Op.SEND:
        # It may be on its way to a buffer. One that is still inside after seconds, while its receive is not even posted, is not.
        # gloo has no such buffers: it sends nothing, of whatever size, before the receive is there (torch 2.11-2.15).
        timeline, meets = pairs.facts.timelines[call.rank], group is not None and group.backend == GLOO
        on = pairs.awaits_receive(call) if meets or stillness_ns(pairs.facts, timeline) >= UNBUFFERED_NS else ()
        return Wait((call,), on, group, unseen=() if on else (call.root,), is_certain=bool(meets and on))
    on = pairs.awaits(call)
    unseen = () if on or call.root < 0 else tuple({call.root} - facts_of(pairs).timelines.keys())
    return Wait((call,), on, group, call.op is Op.RECV_ANY, unseen)


def facts_of(pairs: Pairs) -> Collectives:
    return pairs.facts


@dataclass(frozen=True)
class Deadlock:
    """The waits that can never end. `gone_for` holds, per wait, the ranks that have left; `rings` are closed chains of waits,
    each for a rank inside the next, no two with a rank in common; () when the chains end at ranks that have gone or at a call
    that does not match."""

    dead: tuple[Wait, ...]
    gone_for: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # position in `dead` -> ranks
    rings: tuple[tuple[Wait, ...], ...] = ()


def deadlock(
    facts: Collectives,
    found: list[Wait],
    gone: frozenset[int],
    *,
    unseen_threads: bool = True,
    at_rest: Collection[int] = (),
) -> Deadlock:
    """The waits that nobody can end. `gone`: ranks that have ended, and so will issue nothing any more.

    `unseen_threads`: a program that communicates in threads may have one that has not issued anything yet.
    `at_rest`: ranks all of whose threads communicate, or wait for one that does, as their stacks show.
    """
    silent = not unseen_threads or not may_communicate_in_threads(facts.recording.sources)
    held = dict(enumerate(found))
    inside: dict[int, list[int]] = defaultdict(list)
    depends: dict[int, list[int]] = defaultdict(list)
    for at, wait in held.items():
        for rank in wait.ranks:
            inside[rank].append(at)
        for rank in wait.on:
            depends[rank].append(at)
    queue = list(held)
    while queue:
        at = queue.pop()
        if at not in held or _holds(facts, held[at], held, inside, gone, at_rest, silent):
            continue
        for rank in held.pop(at).ranks:
            queue += depends[rank]
    dead = tuple(held.values())
    leavers = {
        number: tuple(rank for rank in wait.on if rank in gone) for number, wait in enumerate(dead) if not wait.any_of
    }
    return Deadlock(dead, leavers, tuple(_rings(dead, gone)))


def _holds(
    facts: Collectives,
    wait: Wait,
    held: dict[int, Wait],
    inside: dict[int, list[int]],
    gone: frozenset[int],
    at_rest: Collection[int],
    silent: bool,
) -> bool:
    """Whether the wait cannot end as long as the other held ones do not. `silent`: as far as threads go that were never seen."""
    if wait.broken is not None:
        return True
    group = wait.call.group
    bound = (
        rank in gone or (silent and _is_bound(facts, rank, group, held, inside, at_rest=rank in at_rest))
        for rank in wait.on
    )
    return (bool(wait.on) and not wait.unseen and all(bound)) if wait.any_of else any(bound)


def _is_bound(
    facts: Collectives, rank: int, group: str, held: dict[int, Wait], inside: dict[int, list[int]], *, at_rest: bool
) -> bool:
    """Whether the rank can issue nothing on the group, because the threads that do so are all held.

    A job may checkpoint in a second thread: while the main thread waits, that one goes on. A group belongs to the threads that
    have used it; one that it has not used yet may be about to be used by a thread that we have not seen, so there the rank must
    have been still for a second.
    """
    stuck = [call.seq for at in inside[rank] if at in held for call in held[at].calls if call.rank == rank]
    if not stuck or at_rest:
        return bool(stuck)
    timeline = facts.timelines[rank]
    users = timeline.threads_of(group)
    if not users:
        return not timeline.many_threads and stillness_ns(facts, timeline) >= SECOND
    if not timeline.many_threads:
        return True
    threads = {int(row["thread"]) for row in timeline.log.calls if int(row["seq"]) in stuck}
    return users <= threads


def stillness_ns(facts: Collectives, timeline: Timeline) -> int:
    """For how long a rank has been still, at least. After the end of the job: for ever.

    On several hosts the latest sign of life of any rank is used: what they have written arrives here late, and not together.
    """
    job = facts.recording.job
    if not job.running:
        return FOR_EVER
    if job.read_at_ns and facts.one_host:
        return job.read_at_ns - timeline.last_ns
    return facts.last_wall_ns - timeline.wall(timeline.last_ns)


def _rings(dead: tuple[Wait, ...], gone: frozenset[int]) -> Iterator[tuple[Wait, ...]]:
    """Closed chains among waits none of which needs somebody who has gone or a call that does not match; the same ones whatever
    the order of ranks."""
    by_rank: dict[int, int] = {}
    for at, wait in enumerate(dead):
        for rank in wait.ranks:
            by_rank.setdefault(rank, at)
    rooted = {at for at, wait in enumerate(dead) if wait.broken or any(rank in gone for rank in wait.on)}
    needs = {
        at: [by_rank[rank] for rank in wait.on if rank in by_rank and by_rank[rank] not in rooted]
        for at, wait in enumerate(dead)
        if at not in rooted
    }
    for ring in closed_chains(needs, {at: wait.ranks for at, wait in enumerate(dead)}):
        yield tuple(dead[at] for at in ring)
