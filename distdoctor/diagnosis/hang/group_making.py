"""Groups under construction: who is inside new_group, and who was needed there and passed by."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from distdoctor.diagnosis.facts.collectives import Collectives, GroupCalls
from distdoctor.diagnosis.facts.timeline import Timeline
from distdoctor.diagnosis.hang.rings import closed_chains
from distdoctor.diagnosis.source.threads import may_communicate_in_threads
from distdoctor.recording.recording import Call, SourceLine
from distdoctor.recording.trace.events import NewGroupBegun
from distdoctor.recording.trace.layout import ranks_of, ranks_text


@dataclass(frozen=True)
class NewGroup:
    """One call of new_group. `members` are as the caller gave them ("": all ranks); `is_local`: only the members call it
    (use_local_synchronization); `done_ns` 0: the call has not come back, -1: the rank gave up in it.

    Members connect to each other inside the call, so they wait for one another. The others come back at once (torch 2.11-2.15
    without TORCH_DIST_INIT_BARRIER=1), but they have counted the group: its name is the number of groups made so far.
    """

    rank: int
    members: str
    site: SourceLine
    begun_ns: int
    done_ns: int
    is_local: bool

    def needs(self, rank: int) -> bool:
        return not self.members or rank in ranks_of(self.members)


@dataclass(frozen=True)
class Making:
    """One rank's calls of new_group, in order."""

    timeline: Timeline

    @cached_property
    def calls(self) -> tuple[NewGroup, ...]:
        log = self.timeline.log
        return tuple(
            NewGroup(log.rank, ranks_text(one.members), one.site, one.at_ns, one.done_ns, one.members_only)
            for one in log.noted(NewGroupBegun)
        )

    @property
    def inside(self) -> NewGroup | None:
        """The call that the rank sits in, or in which it gave up. Collectives that new_group itself issues are no sign of having
        left it."""
        last = self.calls[-1] if self.calls else None
        return last if last is not None and last.done_ns <= 0 else None

    @property
    def gave_up(self) -> bool:
        """Whether its last call of new_group failed: it stood there until then."""
        return self.inside is not None and self.inside.done_ns < 0

    def counted_before(self, call: NewGroup) -> tuple[int, int]:
        """How many groups a call of the members only has in its name: those for which this rank had called new_group before, but
        for local ones of others, which come back before anything is counted (torch 2.14); and those that it is itself a member of
        (earlier ones)."""
        before, rank = self.calls[: self.calls.index(call)], self.timeline.log.rank
        return sum(not one.is_local or one.needs(rank) for one in before), sum(one.needs(rank) for one in before)

    def shared_with(self, rank: int) -> tuple[str, ...]:
        """The groups for which this rank and another one have to come together, in the order of this one's calls."""
        return tuple(call.members for call in self.calls if call.needs(rank))


@dataclass(frozen=True)
class MadeAlone:
    """The call of new_group, by its number, that none but the members of the group have made, where others had to as well."""

    number: int
    call: NewGroup
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Stalled:
    """Ranks are `inside` new_group, and `absent` ones have not come there, or have come there after another number of groups
    (`miscounted`). `instead` are the calls in which absent ones wait for ranks inside, which proves that neither can go on;
    `makers` all who are in a call of new_group, be it for another group; `alone` is a group before, made by its members only.
    `in_turn`: all ranks are inside, and some wait for each other in a ring, each for one that is inside another group first.
    While one is elsewhere, it may still come with a group of the same name, and free whom it does not mean."""

    inside: tuple[NewGroup, ...]
    absent: tuple[int, ...]
    instead: tuple[Call, ...] = ()
    miscounted: bool = False
    makers: tuple[int, ...] = ()
    alone: MadeAlone | None = None
    in_turn: bool = False

    @property
    def odd(self) -> tuple[int, ...]:
        """Those who are fewer did something else than the job; of equals, those who stayed away."""
        if self.alone is not None:
            return self.alone.ranks
        return self.makers if not self.miscounted and len(self.makers) < len(self.absent) else self.absent

    @property
    def is_tie(self) -> bool:
        """Whether as many ranks stand on either side, so that numbers do not tell which one is odd."""
        return self.alone is None and len(self.makers) == len(self.absent)

    @property
    def is_proven(self) -> bool:
        return bool(self.instead) or self.in_turn


@dataclass(frozen=True)
class EachItsOwn:
    """The call of new_group, by its number, at which ranks name different groups that no rank of another one ever makes: all of
    these look for their members under one name. `makers`: members -> who made it."""

    number: int
    makers: Mapping[tuple[int, ...], tuple[int, ...]]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(rank for ranks in self.makers.values() for rank in ranks))


def each_its_own(facts: Collectives, living: Mapping[int, Timeline]) -> EachItsOwn | None:
    """The first such call, where a rank waits inside new_group or in a call on one of these groups; None when there is none."""
    found = of_one_name(facts, living)
    if found is None or not any(_waits_there(facts, living[rank], found) for rank in found.ranks):
        return None
    return found


def of_one_name(facts: Collectives, living: Mapping[int, Timeline]) -> EachItsOwn | None:
    """The first such call, whether anybody waits or not."""
    everybody = tuple(range(facts.recording.world_size))
    made = {
        rank: [_members(call, everybody) for call in Making(timeline).calls if not call.is_local]
        for rank, timeline in living.items()
    }
    for number in range(max(map(len, made.values()), default=0)):
        makers: dict[tuple[int, ...], list[int]] = {}
        for rank, own in made.items():
            if len(own) > number:
                makers.setdefault(own[number], []).append(rank)
        foreign = any(members in made[rank] for members in makers for rank in made if rank not in makers[members])
        if len(makers) > 1 and not foreign and all(len(members) > 1 for members in makers):
            return EachItsOwn(number + 1, {members: tuple(ranks) for members, ranks in makers.items()})
    return None


def _members(call: NewGroup, everybody: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(ranks_of(call.members))) or everybody


def _waits_there(facts: Collectives, timeline: Timeline, apart: EachItsOwn) -> bool:
    inside = Making(timeline).inside
    return inside is not None or any(tuple(sorted(one.members)) in apart.makers for one in _sat_in(facts, timeline))


@dataclass(frozen=True)
class NamedApart:
    """A group that its members know by different names, because they had made different numbers of groups before: the backend
    connects those who use one name, so none of its calls meets the one that it was meant for."""

    members: tuple[int, ...]
    names: Mapping[str, tuple[int, ...]]  # by whom


@dataclass(frozen=True)
class CountedApart:
    """Members inside a group that they make by themselves (`is_local`), and had made different numbers of groups `before`: its
    name, made of both, is another one for each of these numbers."""

    calls: tuple[NewGroup, ...]
    before: Mapping[int, tuple[int, ...]]  # how many: who


def counted_apart(living: Mapping[int, Timeline]) -> tuple[CountedApart, ...]:
    """Such groups, whichever of its two ways of counting this torch has."""
    making = {rank: Making(timeline) for rank, timeline in living.items()}
    together: dict[str, list[NewGroup]] = defaultdict(list)
    for one in making.values():
        if one.inside is not None and one.inside.is_local:
            together[one.inside.members].append(one.inside)
    found = []
    for calls in together.values():
        counted = {call.rank: making[call.rank].counted_before(call) for call in calls}
        if all(len({*way}) > 1 for way in zip(*counted.values(), strict=True)):
            before: dict[int, list[int]] = defaultdict(list)
            for rank, (number, _) in sorted(counted.items()):
                before[number].append(rank)
            found.append(CountedApart(tuple(calls), {number: tuple(ranks) for number, ranks in before.items()}))
    return tuple(found)


def named_apart(facts: Collectives) -> NamedApart | None:
    """The first such group in which a rank sits in a call, or on the way to which one is inside new_group; None when there is
    none, or when rings have forgotten which groups were made. Members are compared as they are written down: equal ranks, equal
    text."""
    known: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for rank, timeline in facts.timelines.items():
        if timeline.log.lost.get("groups", 0):
            return None
        for row in timeline.log.groups:
            known[timeline.log.text(int(row["members"]))][rank].append(timeline.log.text(int(row["key"])))
    for members, by_rank in known.items():
        if not members or not _share_no_name(by_rank):
            continue
        apart, names = tuple(sorted(ranks_of(members))), defaultdict[str, list[int]](list)
        for rank, own in sorted(by_rank.items()):
            names[own[0]].append(rank)
        sits = any(tuple(sorted(one.members)) == apart for t in facts.timelines.values() for one in _sat_in(facts, t))
        if sits or any(Making(timeline).inside is not None for timeline in facts.timelines.values()):
            return NamedApart(apart, {name: tuple(ranks) for name, ranks in names.items()})
    return None


def _share_no_name(by_rank: Mapping[int, Sequence[str]]) -> bool:
    """Whether ranks have begun with several names, and none of these lots has ever used a name of another one."""
    first: dict[str, str] = {}
    shared = any(first.setdefault(name, own[0]) != own[0] for own in by_rank.values() for name in own)
    return not shared and len(set(first.values())) > 1


def _sat_in(facts: Collectives, timeline: Timeline) -> Iterator[GroupCalls]:
    return (group for call in timeline.sitting if (group := facts.group_of(call)) is not None)


def stalled(facts: Collectives, living: Mapping[int, Timeline]) -> Stalled | None:
    """The new_group that some ranks sit in without others; None when there is none."""
    making = {rank: Making(timeline) for rank, timeline in living.items()}
    inside = {rank: made.inside for rank, made in making.items() if made.inside is not None}
    if not inside:
        return None
    if apart := [call for one in counted_apart(living) for call in one.calls]:
        return Stalled(tuple(apart), tuple(sorted(call.rank for call in apart)), miscounted=True)
    by_progress = sorted(inside, key=lambda rank: (-len(making[rank].calls), rank))
    missed = {rank: _missing_at(inside[rank], making) for rank in by_progress}
    first = by_progress[0]
    if set(missed[first]) & inside.keys():  # they wait in turn: for whom?
        first = next((rank for rank in by_progress if missed[rank] and not set(missed[rank]) & inside.keys()), first)
    together = tuple(call for call in inside.values() if call.members == inside[first].members)
    absent = tuple(rank for rank in missed[first] if rank not in {call.rank for call in together})
    if not absent:
        return _miscounted(together, making)
    alone = not may_communicate_in_threads(facts.recording.sources)
    held = {call.rank for call in together if alone and not living[call.rank].many_threads}
    instead = tuple(call for rank in absent for call in _waits_for(facts, living[rank], held))
    makers = tuple(rank for rank in sorted(inside) if rank not in absent)
    everybody = len(inside) == facts.recording.world_size and not any(living[rank].many_threads for rank in inside)
    in_turn = alone and everybody and _wait_in_turn({rank: making[rank] for rank in inside})
    return Stalled(together, absent, instead, makers=makers, alone=_passed_over(making), in_turn=in_turn)


def _wait_in_turn(inside: Mapping[int, Making]) -> bool:
    """Whether ranks inside new_group need each other in a ring: none comes to what another one is inside before it has left
    its own."""
    if any(made.timeline.log.lost.get("events", 0) for made in inside.values()):
        return False  # how often each has made a group is not known any more
    asked = {rank: Counter(frozenset(ranks_of(call.members)) for call in made.calls) for rank, made in inside.items()}
    needs: dict[int, list[int]] = {}
    for rank, made in inside.items():
        own = made.inside
        assert own is not None
        others = (other for other in inside if other != rank and own.needs(other))
        group = frozenset(ranks_of(own.members))
        needs[rank] = [other for other in others if asked[other][group] < asked[rank][group]]
    return any(closed_chains(needs, {rank: (rank,) for rank in inside}))


def _passed_over(making: Mapping[int, Making]) -> MadeAlone | None:
    """A group that its members have made by themselves, where another rank has gone on to a later one: it will not come."""
    alone = made_alone(making.values())
    if alone is None:
        return None
    rest = (one for rank, one in making.items() if rank not in alone.ranks)
    return alone if any(sum(not call.is_local for call in one.calls) >= alone.number for one in rest) else None


def _missing_at(call: NewGroup, making: Mapping[int, Making]) -> tuple[int, ...]:
    """Whom the call needs, and who has not come to it."""
    return tuple(rank for rank in sorted(making) if call.needs(rank) and _is_behind(making[rank], making[call.rank]))


def _miscounted(makers: tuple[NewGroup, ...], making: Mapping[int, Making]) -> Stalled | None:
    """Everybody is inside, or has been, but some had made fewer groups before: they look for the others under another name."""
    counts = {call.rank: sum(not one.is_local for one in making[call.rank].calls) for call in makers}
    left = [rank for rank in making if rank not in counts and makers[0].needs(rank)]
    counts |= {rank: number for rank in left if (number := _number_of(makers[0].members, making[rank]))}
    usual = max(counts.values(), key=lambda n: (list(counts.values()).count(n), n), default=0)
    odd = tuple(rank for rank, count in sorted(counts.items()) if count != usual)
    inside = tuple(call for call in makers if call.rank not in odd)
    if not odd or makers[0].is_local:
        return None
    return Stalled(
        inside, odd, miscounted=True, makers=tuple(call.rank for call in inside), alone=made_alone(making.values())
    )


def _number_of(members: str, making: Making) -> int:
    """Among all groups that a rank has made, the number of the last one of these members; 0 where it has made none."""
    made = [call.members for call in making.calls if not call.is_local]
    return len(made) - made[::-1].index(members) if members in made else 0


def made_alone(making: Iterable[Making]) -> MadeAlone | None:
    """The first call of new_group that is not every rank's, where exactly the members of its group have made it; None when
    others have too, or a member has not: then nothing tells that the call was meant for members."""
    made = {one.timeline.rank: [call for call in one.calls if not call.is_local] for one in making}
    for number in range(max(map(len, made.values()), default=0)):
        calls = [own[number] for own in made.values() if len(own) > number]
        if len(calls) == len(made) and len({call.members for call in calls}) == 1:
            continue
        for call in calls:
            makers = {rank for rank, own in made.items() if any(one.members == call.members for one in own)}
            if call.members and makers == set(ranks_of(call.members)) and makers < made.keys():
                return MadeAlone(number + 1, call, tuple(sorted(makers)))
        return None
    return None


def _is_behind(other: Making, maker: Making) -> bool:
    """Whether a rank has yet to enter the group that another one is inside, or makes others first."""
    mine, theirs = other.shared_with(maker.timeline.rank), maker.shared_with(other.timeline.rank)
    return mine[: len(theirs)] != theirs


def _waits_for(facts: Collectives, timeline: Timeline, ranks: set[int]) -> tuple[Call, ...]:
    """The calls of a rank that cannot end before one of these ranks has issued its own."""
    if timeline.many_threads:
        return ()
    found = []
    for call in timeline.sitting:
        group = facts.group_of(call)
        lacking = {r for r in ranks if group is not None and r in group.tracks and group.tracks[r].count < call.number}
        if lacking:
            found.append(call)
    return tuple(found)
