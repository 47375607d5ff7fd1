"""All ranks in the same call, seen from outside: no rank is missing, and it does not complete, or the network is dead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.diagnosis.finding import LIKELY, POSSIBLE, Finding, Prescription
from distdoctor.diagnosis.hang.live.at_start import STARTING_SECONDS, nobody_answers
from distdoctor.diagnosis.hang.live.rank_activity import Activity, RankActivity
from distdoctor.diagnosis.hang.live.stack_threads import crossed_threads
from distdoctor.diagnosis.hang.live.stall import Stall
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.source.deciding_value import GROUP, deciding_value
from distdoctor.diagnosis.source.decision import Decision
from distdoctor.recording.rank_set import named
from distdoctor.recording.trace.layout import Op

AT_WORK = 0.05  # of a core: threads that move bytes take more


def seen_in_backend(standstill: Stall, verdict: Verdict | None = None) -> Iterator[Finding]:
    """Only possible from stacks alone: a rank that is a call behind looks the same from outside. A recording counts the calls."""
    if standstill.cut:
        yield _cut(standstill)
        return
    standings = list(standstill.standings.values())
    calls = {(s.call, s.site, s.group_name, _numbers(s)) for s in standings}
    together = len(calls) == 1 and all(
        s.doing in (Activity.COLLECTIVE, Activity.BACKWARD, Activity.HANDLE, Activity.NEW_GROUP) for s in standings
    )
    alone = len(standings) + len(standstill.stacks.elsewhere) < 2
    if alone or not (together or _all_in_init(standstill)) or standings[0].op in (Op.SEND, Op.RECV):
        return
    if nobody_answers(standstill) or (together and not standstill.exceeds_patience(standstill.waited_seconds)):
        return
    if standstill.stacks.copies and (standstill.is_one_moment or any(map(standstill.is_moving, standings))):
        return  # ranks that reduce in each step are there in most moments
    if verdict is None and (crossed_threads(standstill) or group_order(standstill)):
        return  # then the program may well be the cause
    if verdict is not None and any(s.process is not None and s.process.cpu_share > AT_WORK for s in standings):
        return  # a large reduction on a slow link: whoever hangs in the backend does nothing at all
    if verdict is not None and _is_awaited(verdict):
        return
    elsewhere, first = standstill.stacks.elsewhere, standings[0]
    here = " on this host" if elsewhere else ""
    what = (
        "waited for the same handle" if first.doing is Activity.HANDLE else f"been in {first.call or 'the same call'}"
    )
    counted = verdict is not None and not elsewhere and _have_issued_the_same(verdict)
    yield Finding(
        title=f"have all {what}{standstill.how_long(first)}{here}, and it does not complete",
        ranks=tuple(s.rank for s in standings),
        confidence=LIKELY if counted else POSSIBLE,
        place=first.site,
        places=standstill.places(),
        evidence={
            "operation": first.call,
            "waited seconds": standstill.waited_seconds,
            "ranks on other hosts": list(elsewhere),
        },
        why="every member of every group has issued the same calls, and none of them moves: the program is not the cause"
        if counted
        else _why(standings, elsewhere),
        prescriptions=(
            *(() if verdict is not None else (Prescription("record-the-job", change=_RECORD),)),
            Prescription("gather-backend-evidence", change="" if counted else _IF_ALL_ARE_THERE),
        ),
    )


def group_order(standstill: Stall) -> Decision | None:
    """Of ranks that all wait in one call of one line, which is given a group: what in the source makes the order of the groups
    differ between ranks; None where nothing does, or somebody is missing."""
    standings = list(standstill.standings.values())
    calls = {(s.call, s.site) for s in standings if s.doing is Activity.COLLECTIVE and s.names_a_group}
    whole = len(standings) > 1 and len(calls) == 1 and all(s.names_a_group for s in standings)
    if not whole or standstill.stacks.elsewhere or not standstill.exceeds_patience(standstill.waited_seconds):
        return None
    try:
        return deciding_value(standstill.recording.sources, standings[0].site, GROUP)
    except RecursionError:  # generated code
        return None


def _all_in_init(standstill: Stall) -> bool:
    """Whether every rank is in init_process_group, and has been for longer than a start takes. The store is asked again every few
    milliseconds, so nobody is still: what counts is that all of them stay at one line, and the age of the processes."""
    standings = standstill.standings.values()
    ages = [one.process.age_seconds for one in standings if one.process is not None and one.doing is Activity.INIT]
    whole = (
        len(ages) == len(standings) and not standstill.stacks.elsewhere and len({one.site for one in standings}) == 1
    )
    return whole and min(ages, default=0.0) >= standstill.stacks.patience_seconds + 2 * STARTING_SECONDS


_RECORD = "start it with distdoctor run, which names the first call that differs"
_IF_ALL_ARE_THERE = "if every rank is in this call, check the network and the devices (NCCL_DEBUG=INFO, ibstat, dmesg)"


def _cut(standstill: Stall) -> Finding:
    """The kernel of one rank sends the same bytes again and again, and the other end does not acknowledge them."""
    rank, link = max(standstill.cut, key=lambda found: (found[1].resent, found[1].unacknowledged, -found[0]))
    where = f"rank {link.peer} ({link.address})" if link.peer >= 0 else f"{link.address}, on another host"
    return Finding(
        title=f"the connection from rank {rank} to {where} is dead: the same bytes were retransmitted {link.resent} times and "
        "never acknowledged",
        ranks=tuple(sorted({one for number, other in standstill.cut for one in (number, other.peer) if one >= 0})),
        confidence=LIKELY if link.peer >= 0 else POSSIBLE,
        place=standstill.standings[rank].site,
        places=standstill.places(standstill.standings[rank]),
        evidence={
            "connections": [
                {"rank": number, "to": other.peer if other.peer >= 0 else None, "address": other.address}
                | {"bytes unacknowledged": other.unacknowledged, "sent again": other.resent}
                for number, other in standstill.cut
            ],
            "waited seconds": standstill.waited_seconds,
        },
        why=f"{standstill.who_waits}; {link.unacknowledged:,} bytes are waiting in the kernel of rank {rank}: the network drops "
        "them or their acknowledgements, or the other host is down",
        prescriptions=(
            Prescription(
                "gather-backend-evidence",
                change=f"ss -tinp dst {link.address.rpartition(':')[0]}; ip -s link; iptables -nvL: here and at the other end",
            ),
        ),
    )


def _have_issued_the_same(verdict: Verdict) -> bool:
    """Whether the members of each group have issued equally many calls."""
    groups = verdict.facts.groups
    return bool(groups) and not any(group.unseen or len(set(group.counts.values())) > 1 for group in groups)


def _is_awaited(verdict: Verdict) -> bool:
    """Whether some member of a group, all of which left a recording, has issued fewer calls than the others."""
    return any(not group.unseen and len(set(group.counts.values())) > 1 for group in verdict.facts.groups)


def _why(standings: Sequence[RankActivity], elsewhere: tuple[int, ...]) -> str:
    if elsewhere:
        return (
            f"{named(elsewhere)} should be on other hosts, and the cause may be there: run distdoctor hang-dump on each"
        )
    if standings[0].doing is Activity.HANDLE:
        return (
            "no rank is missing; the stacks do not show which operations the handles belong to: a different one on one rank "
            "would look the same (distdoctor run records them)"
        )
    if any(standing.names_a_group for standing in standings):
        return (
            "no rank is missing; the call was given a group, and the stacks do not show whether it is the same one on every "
            "rank: ranks that enter two groups in different order look like this (distdoctor run records it)"
        )
    return "no rank is missing; the stacks do not show whether one rank is a call behind (distdoctor run records it)"


def _numbers(standing: RankActivity) -> tuple[tuple[str, str], ...]:
    """The arguments that can be compared between processes: numbers, not addresses."""
    return tuple((k, v) for k, v in sorted(standing.arguments.items()) if v.lstrip("-").isdigit())
