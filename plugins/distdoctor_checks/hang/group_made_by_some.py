"""
DD119 group-made-by-some: new_group was not called by every rank, or not in the same order.

What it means    Every rank of the job must enter new_group (and init_device_mesh, which calls it), including ranks that will
                 not be members. Here some ranks are inside it while members have passed it, or have made other groups first.
Why it hurts     Members connect to each other inside the call, so the ranks inside wait for the others until the timeout.
                 Groups are named by a running number, so a rank that has made fewer groups looks for the others under a
                 different name. With use_local_synchronization=True the name holds the number of groups that the rank itself
                 has made: round a ring of ranks the last link is the second group of one and the first of the other.
How we know      The recordings show which ranks entered new_group, how often and for which members, and which returned. Certain
                 when the missing ranks wait elsewhere for those inside, or all wait for each other in a ring of groups; likely
                 when all ranks have been idle for a long time, or the source makes the groups in the order of a set.
                 Of two ranks a condition on the rank tells which is odd; without one both are named. Sides that make groups of
                 other members under one number, or a group that its members made alone, are a warning where the job came
                 through. Dumps of a flight recorder hold each rank's own list of members: lists that differ are likely it.
                 Seen from outside, the number of the group that each rank is about to make is in its stack.
What to do       Call new_group on every rank, for all groups, in the same order.
When it is fine  Non-members that have already returned; use_local_synchronization=True, which only members call, each after
                 as many groups as the others.
Source           torch.distributed.new_group: "requires that all processes in the main group enter this function".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from textwrap import shorten

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, LIKELY, WARNING, Finding, Place, Prescription, Stalls
from distdoctor.diagnosis.hang.device_progress import DeviceProgress
from distdoctor.diagnosis.hang.group_making import (
    CountedApart,
    EachItsOwn,
    MadeAlone,
    Making,
    NamedApart,
    NewGroup,
    counted_apart,
    each_its_own,
    made_alone,
    named_apart,
    of_one_name,
)
from distdoctor.diagnosis.hang.hash_order import GroupOrder, group_order_of
from distdoctor.diagnosis.hang.in_dumps import groups_taken_differently
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.live.apart import RanksApart
from distdoctor.diagnosis.hang.live.sides import Sides
from distdoctor.diagnosis.hang.live.stack_waits import line_of
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import at, by_site, deciding_places, decision_places, have_waited, seconds, table
from distdoctor.diagnosis.source.deciding import deciding_condition
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import NewGroupBegun, NewGroupDone
from distdoctor.recording.trace.layout import ranks_text
from distdoctor.testing import recording


@check(
    "DD119", "group-made-by-some", severity=ERROR, family="hang", formerly=("DD126 ranks-apart",), stalls=Stalls.FOREVER
)
def examine(verdict: Verdict | None, apart: RanksApart | None, progress: DeviceProgress | None) -> Iterator[Finding]:
    if progress is not None:
        yield from groups_taken_differently(progress, verdict)
    if apart is not None and apart.sides is not None and apart.sides.makes_group:
        yield _by_stacks(apart.sides)
    if verdict is None:
        return
    for incident in verdict.of_kind(IncidentKind.PASSED_BY):
        blamed = {rank: verdict.timeline(rank) for rank in incident.ranks}
        own, counted = each_its_own(verdict.facts, blamed), counted_apart(blamed)
        alone = made_alone(Making(timeline) for timeline in verdict.facts.timelines.values())
        if (order := group_order_of(verdict)) is not None:
            yield _in_an_order_of_its_own(verdict, incident, order)
        elif own is not None and own.ranks == incident.ranks:
            yield _of_one_name(verdict, incident, own)
        elif counted:
            yield _by_local_counts(verdict, incident, counted)
        elif alone is not None and alone.ranks == incident.ranks:
            yield _by_members(verdict, incident, alone)
        elif (names := named_apart(verdict.facts)) is not None:
            yield _by_two_names(verdict, incident, names)
        else:
            yield _finding(verdict, incident)
    if not verdict.incidents and not verdict.recording.job.running and not verdict.recording.missing:
        own = of_one_name(verdict.facts, verdict.facts.timelines)
        alone = made_alone(Making(timeline) for timeline in verdict.facts.timelines.values())
        if own is not None:
            yield _unnoticed(verdict, own)
        elif alone is not None:
            yield _unharmed(verdict, alone)


def _by_stacks(sides: Sides) -> Finding:
    one = sides.odd[0]
    change = f"call the {one.call} of {line_of(one)} on every rank, members or not, in the same order"
    if sides.counts_differently:
        change = (
            f"call every new_group that comes before {line_of(one)} on all ranks, members or not, in the same order"
        )
    # It says more than that a call was skipped.
    return replace(sides.finding("new-group-on-every-rank", change), specificity=10)


def _in_an_order_of_its_own(verdict: Verdict, incident: Incident, order: GroupOrder) -> Finding:
    """The ranks make their groups while they go through a set, whose order each process has for itself."""
    loop, making = order.loop, [Making(timeline) for _, timeline in sorted(verdict.facts.timelines.items())]
    inside = {one.rank: one for made in making if (one := made.inside) is not None}
    ranks = tuple(sorted(rank for own in order.asked.values() for rank in own))
    asked = "; ".join(f"{named(own)}: new_group([{members}])" for members, own in [*order.asked.items()][:6])
    return Finding(
        title=f"make their groups in the order of the set `{shorten(loop.text, 60, placeholder='...')}`, which each process goes "
        f"through in an order of its own: number {order.number} is for other members on each side",
        ranks=ranks,
        confidence=LIKELY,
        stalls=incident.stalls,
        place=loop.loop,
        places=(
            Place(loop.loop, ranks, "goes through the set"),
            Place(loop.made, ranks, "makes the set"),
            *_waiting(inside),
            *by_site(verdict, (call for made in making for call in made.timeline.sitting)),
        ),
        evidence={"new_groups": {made.timeline.rank: [one.members for one in made.calls] for made in making}},
        why="Python hashes texts differently in each of these processes, so their sets have different orders; all ranks have to "
        f"make all groups in one order ({asked})",
        prescriptions=(
            Prescription(
                "new-group-on-every-rank", change=f"go through sorted({loop.text}) at {at(loop.loop)}", edits=loop.edits
            ),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _of_one_name(verdict: Verdict, incident: Incident, own: EachItsOwn) -> Finding:
    """Every rank has made a group of its own, under the name that the others' groups have."""
    made = {
        ranks: [one for one in verdict.timeline(ranks[0]).log.noted(NewGroupBegun) if not one.members_only]
        for ranks in own.makers.values()
    }
    sites = {ranks: calls[own.number - 1].site for ranks, calls in made.items()}
    place = next(iter(sites.values()))
    asked = "; ".join(f"{named(ranks)}: {list(members)}" for members, ranks in list(own.makers.items())[:6])
    silent = f", and no rank has moved for {seconds(incident.silence.seconds)}" if incident.silence else ""
    return Finding(
        title=f"call number {own.number} of new_group is for other members on each side, so their groups share one name",
        ranks=incident.ranks,
        confidence=incident.confidence,
        stalls=incident.stalls,
        place=place,
        places=(
            *(Place(sites[ranks], ranks, f"makes new_group({list(members)})") for members, ranks in own.makers.items()),
            *deciding_places(incident),
        ),
        evidence={"new_groups": {str(list(members)): list(ranks) for members, ranks in own.makers.items()}},
        why=f"groups are named by a running number, and members find each other by that name ({asked}){silent}",
        prescriptions=(
            Prescription(
                "new-group-on-every-rank",
                change=f"make all of these groups on every rank, in one order ({at(place)}): "
                "`groups = [dist.new_group(members) for members in all_members]`",
            ),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _unnoticed(verdict: Verdict, own: EachItsOwn) -> Finding:
    """Groups of one name, in a job that came through this time: who writes to the store first is a matter of chance."""
    at_ns = min(timeline.wall(timeline.last_ns) for timeline in verdict.facts.timelines.values())
    found = _of_one_name(verdict, Incident(IncidentKind.PASSED_BY, own.ranks, at_ns, LIKELY), own)
    why = "groups are named by a running number, and members find each other by that name; this run came through by chance"
    return replace(found, severity=WARNING, why=why, explains=())


def _unharmed(verdict: Verdict, alone: MadeAlone) -> Finding:
    """A group that only its members have made, in a job that came through: nobody made another one afterwards."""
    at_ns = min(timeline.wall(timeline.last_ns) for timeline in verdict.facts.timelines.values())
    found = _by_members(verdict, Incident(IncidentKind.PASSED_BY, alone.ranks, at_ns, LIKELY), alone)
    return replace(
        found,
        title=f"{_left_out(alone)}: the next group that both sides make has two names, and hangs",
        severity=WARNING,
        explains=(),
    )


def _left_out(alone: MadeAlone) -> str:
    return f"never called new_group for ranks {alone.call.members} (number {alone.number}), which {named(alone.ranks)} made alone"


def _by_members(verdict: Verdict, incident: Incident, alone: MadeAlone) -> Finding:
    """The members of a group have made it without the other ranks, and now count the groups differently. Torch wants the call of
    every rank: those who did not make it are odd."""
    call, making = alone.call, [Making(timeline) for _, timeline in sorted(verdict.facts.timelines.items())]
    inside = [one for made in making if (one := made.inside) is not None]
    rest = {made.timeline.rank for made in making} - set(alone.ranks)
    decision = deciding_condition(verdict.recording.sources, call.site, None, alone.ranks, rest)
    where = f", and {have_waited([one.rank for one in inside])} in new_group" if inside else ""
    return Finding(
        title=f"{_left_out(alone)}: since then the groups of the two sides have different names{where}",
        ranks=tuple(sorted(rest)),
        confidence=incident.confidence,
        stalls=incident.stalls,
        place=call.site,
        places=(
            Place(call.site, alone.ranks, f"makes new_group([{call.members}])"),
            *_waiting({one.rank: one for one in inside}),
            *by_site(verdict, (call for made in making for call in made.timeline.sitting)),
            *(deciding_places(incident) or decision_places(decision, {call.site})),
        ),
        evidence={"new_groups": {made.timeline.rank: [one.members for one in made.calls] for made in making}},
        why="groups are named by a running number, so every rank of the job must call new_group, members or not; calls so far: "
        + _counts(making),
        prescriptions=(
            Prescription("new-group-on-every-rank", change=f"call new_group at {at(call.site)} on {named(rest)} too"),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _by_local_counts(verdict: Verdict, incident: Incident, apart: Sequence[CountedApart]) -> Finding:
    """Members make their group without the others, and each counts only the groups that it has made itself."""
    inside = {call.rank: call for one in apart for call in one.calls}
    first = apart[0]
    place = first.calls[0].site
    counts = "; ".join(
        f"ranks {one.calls[0].members}: {', '.join(f'number {n + 1} of {named(ranks)}' for n, ranks in one.before.items())}"
        for one in apart[:4]
    )
    return Finding(
        title=f"look for each other under different names in new_group for ranks {first.calls[0].members}: it is "
        + ", and ".join(
            f"group number {number + 1} that {named(ranks)} made" for number, ranks in first.before.items()
        ),
        ranks=incident.ranks,
        confidence=incident.confidence,
        stalls=incident.stalls,
        place=place,
        places=(*_waiting(inside), *deciding_places(incident)),
        evidence={"groups_before": {one.calls[0].members: dict(one.before) for one in apart}},
        why="with use_local_synchronization=True a group is named by its members and by how many groups a rank has made so "
        f"far, and these differ ({counts})",
        prescriptions=(
            Prescription(
                "new-group-on-every-rank",
                change=f"make every group at {at(place)} on all ranks, in one order, without use_local_synchronization",
            ),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _by_two_names(verdict: Verdict, incident: Incident, apart: NamedApart) -> Finding:
    """The members of a group count the groups differently, and nothing tells who has made one too many."""
    making = [Making(timeline) for _, timeline in sorted(verdict.facts.timelines.items())]
    names = "; ".join(f'{named(ranks)}: "{name}"' for name, ranks in apart.names.items())
    calls = {
        one.timeline.rank: call for one in making for call in one.calls if call.members == ranks_text(apart.members)
    }
    place = calls[min(calls)].site if calls else SourceLine()
    return Finding(
        title=f"know the group of {named(apart.members)} by different names, so that its calls reach other ranks or nobody",
        ranks=incident.ranks,
        confidence=incident.confidence,
        undecided=incident.is_tie,
        stalls=incident.stalls,
        place=place,
        places=(
            *(Place(call.site, (rank,), f"makes new_group([{call.members}])") for rank, call in sorted(calls.items())),
            *by_site(verdict, (call for made in making for call in made.timeline.sitting)),
        ),
        evidence={"names": {name: list(ranks) for name, ranks in apart.names.items()}},
        why=f"groups are named by a running number ({names}), and members find each other by that name; calls of new_group so "
        f"far: {_counts(making)}",
        prescriptions=(
            Prescription(
                "new-group-on-every-rank", change=f"call every new_group before {at(place)} on all ranks, in one order"
            ),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _finding(verdict: Verdict, incident: Incident) -> Finding:
    making = {rank: Making(timeline) for rank, timeline in verdict.facts.timelines.items()}
    inside = {rank: one for rank, made in sorted(making.items()) if (one := made.inside) is not None}
    waiting = {rank: one for rank, one in inside.items() if rank not in incident.ranks} or inside
    needing = [one for rank, one in waiting.items() if any(one.needs(other) for other in set(incident.ranks) - {rank})]
    group = next(iter([*needing, *waiting.values()]), NewGroup(0, "", SourceLine(), 0, 0, False))
    away = (
        [rank for rank in making if group.needs(rank) and rank not in inside] if waiting is inside else incident.ranks
    )
    title, where = _words(
        group, [rank for rank, one in waiting.items() if one.members == group.members], incident, away
    )
    return Finding(
        title=title,
        ranks=incident.ranks,
        confidence=incident.confidence,
        undecided=incident.is_tie,
        stalls=incident.stalls,
        place=group.site,
        places=(
            *_waiting(waiting),
            *by_site(verdict, (call for rank in away for call in verdict.timeline(rank).sitting)),
            *deciding_places(incident),
        ),
        evidence={"new_groups": {rank: [one.members for one in made.calls] for rank, made in sorted(making.items())}},
        why="all ranks of the job must enter new_group, in the same order; calls so far: " + _counts(making.values()),
        prescriptions=(Prescription("new-group-on-every-rank", change=f"call new_group at {at(group.site)} {where}"),),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _counts(making: Iterable[Making]) -> str:
    """`1 on ranks 0-2; 0 on rank 3`."""
    together: dict[str, list[int]] = {}
    for made in making:
        together.setdefault(str(len(made.calls)), []).append(made.timeline.rank)
    return table(together)


def _waiting(inside: Mapping[int, NewGroup]) -> list[Place]:
    """Where ranks wait in new_group, those in the same call together."""
    rows: dict[tuple[SourceLine, str], list[int]] = {}
    for rank, one in sorted(inside.items()):
        rows.setdefault((one.site, one.members), []).append(rank)
    return [Place(site, tuple(ranks), f"waits in new_group([{members}])") for (site, members), ranks in rows.items()]


def _words(group: NewGroup, there: Sequence[int], incident: Incident, away: Sequence[int]) -> tuple[str, str]:
    """The title, and where the call of new_group belongs. Ranks who make a group are blamed where they are fewer."""
    members = f"ranks {group.members}" if group.members else "all ranks"
    waited = have_waited(there) + (
        f" for {seconds(quiet)}" if (quiet := incident.silence.seconds if incident.silence else 0.0) >= 1 else ""
    )
    if incident.is_tie:
        absent = f"{named(away)} never called it" if away else "they look for each other under different names"
        return (
            f"do not agree on new_group for {members}: {waited} in it, and {absent}",
            "on all ranks or on none",
        )
    if set(there) & set(incident.ranks):
        title = f"called new_group for {members}, in which {waited}, and {named(away)} never did"
        return title, f"on {named(away)} too, or on no rank"
    return (
        f"never called new_group for {members}, in which {waited}",
        f"unconditionally, on {named(incident.ranks)} too",
    )


def sick() -> Recording:
    """Rank 3 has gone past the group that it is a member of."""
    script = recording(ranks=4)
    script.note(NewGroupBegun((1, 2, 3)), [0, 1, 2], site="train.py:15 main")
    return script.stays([0, 1, 2]).collective("barrier", site="train.py:20 main").live(silent_for=3)


def healthy() -> Recording:
    """Every rank makes the groups, and ranks 2 and 3, which are no members, are through at once."""
    script = recording(ranks=4).group("1", [0, 1])
    script.note(NewGroupBegun((0, 1), done_ns=1), site="train.py:15 main")
    script.note(NewGroupDone((0, 1), "1"), [0, 1])
    return script.collective("barrier", site="train.py:20 main").live(silent_for=70)
