"""
DD116 stuck-in-user-code: a rank is stuck in user code while the others wait for it.

What it means    One rank is in a lock, a sleep, a subprocess, a prompt or a call that holds the GIL, and does not reach the
                 collective that its peers are in.
Why it hurts     Every other rank waits until its timeout: 30 minutes with gloo, 10 with NCCL.
How we know      Two samples of its stack are equal, the kernel has not scheduled it in between (or it held the GIL in both), it
                 is in none of torch's communicating functions, and some rank has been waiting for ten seconds. Another thread
                 that holds the GIL on one line in every sample is named with that line. From recordings alone: its peers wait
                 in a call that it has not issued, and it has issued nothing else. From dumps: its device has also completed all
                 of its work.
                 Copied stacks (py-spy, faulthandler) show it without its times: likely where all others wait for it, a warning
                 where neither a log nor dumps say so too.
                 A rank that moves and stays in one function for 25 s while the others wait is told as possible: an endless
                 loop and slow work look alike.
                 Ranks that all stand in code of their own, so that nobody waits for another, are told together.
                 What is waited for is named where /proc or the source shows it: the FIFO that open() waits on, a file lock
                 and its holder, the thread that has taken the lock, a prompt of pdb. A rank that holds the file lock which
                 the others ask for, and waits for them in a collective, is the one that is named. An exception that has ended
                 a thread of the rank is shown, as the cause where a queue, an event or a future is waited for; one that a
                 task's future keeps is shown beside it, also that of a rank which may have had to set the key. Of a key of a
                 store those ranks are named that have set such keys so far, and not this one; or the key that others have set
                 in its place, where the two names differ in one word that looks worked out, with what makes it differ.
What to do       Check the line. Give locks, subprocesses and network calls a timeout; do rank-local work before or after the
                 step, never between two collectives; keep prompts and breakpoints out of ranks.
When it is fine  The rank is back within 25 s, or it reads and writes.
Source           py-spy dump, /proc/PID/sched, /proc/PID/syscall, /proc/locks, torch.distributed.init_process_group(timeout=...).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.facts.collectives import Collectives
from distdoctor.diagnosis.finding import (
    ERROR,
    LIKELY,
    NOTE,
    POSSIBLE,
    WARNING,
    Finding,
    Place,
    Prescription,
    Stalls,
)
from distdoctor.diagnosis.hang.device_progress import Absence, DeviceProgress
from distdoctor.diagnosis.hang.ending import RAISED, end_of
from distdoctor.diagnosis.hang.in_dumps import hosts_that_stopped
from distdoctor.diagnosis.hang.in_logs import (
    KEY,
    LOOK,
    LogFacts,
    call_in,
    claimed,
    from_line,
    of_one_group,
    who,
)
from distdoctor.diagnosis.hang.in_ras import STACKS, hosts_behind
from distdoctor.diagnosis.hang.live.awaited_keys import of_awaited_key
from distdoctor.diagnosis.hang.live.obstacle import KEY_OF_STORE, lock_keepers, obstacle_of
from distdoctor.diagnosis.hang.live.rank_activity import Activity, RankActivity, line_of, standing_of
from distdoctor.diagnosis.hang.live.sides import KEY as APART
from distdoctor.diagnosis.hang.live.stall import OWN_CODE, Stall, evidence_of, of_several
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import decision_places
from distdoctor.diagnosis.source.call_edits import only_call
from distdoctor.diagnosis.source.deciding import awaited_condition
from distdoctor.diagnosis.source.decision import Decision
from distdoctor.diagnosis.source.polling import polled_at
from distdoctor.diagnosis.source.unreleased import Unreleased, unreleased_at
from distdoctor.recording.clue import Clue, ClueKind
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.stacks import RankStacks
from distdoctor.recording.trace.events import ThreadFailed
from distdoctor.recording.trace.layout import POINT_TO_POINT, ROOTED, Op
from distdoctor.testing.stacks import frame, in_collective, looked_at, rank

OF_ALL = frozenset(Op) - POINT_TO_POINT - ROOTED - {Op.UNKNOWN}  # that end when every member has come
# How many arguments stand before `group` in torch's functions. Those that are given none of it are of all ranks.
GROUP_AT = {
    "barrier": 0, "monitored_barrier": 0, "all_reduce": 2, "all_gather": 2, "all_gather_into_tensor": 2, "all_gather_object": 2,
    "reduce_scatter": 3, "reduce_scatter_tensor": 3, "all_to_all": 2, "all_to_all_single": 4,
}  # fmt: skip
BY_COPIES = (
    80  # specificity of what copied stacks show, beside a log: an error of its own says more, numbers of calls less
)
PAUSE_SECONDS = 60.0  # that a job may make when all of its ranks do so, and nobody waits


@check(
    "DD116",
    "stuck-in-user-code",
    severity=ERROR,
    family="hang",
    formerly=("DD127 told-by-the-log",),
    stalls=Stalls.MAYBE,
)
def examine(
    standstill: Stall | None, verdict: Verdict | None, progress: DeviceProgress | None, log: LogFacts | None
) -> Iterator[Finding]:
    copies = standstill if standstill is not None and standstill.stacks.copies else None
    if log is not None:
        yield from (_at_its_line(one, copies) for one in _by_log(log))
        yield from _unranked(log)
    seen = list(_seen(standstill)) if standstill is not None else []
    if copies is not None and progress is not None:
        seen = [_with_dumps(one, progress, verdict) for one in seen]
    yield from seen
    if progress is not None and verdict is not None and not seen and (standstill is None or copies is not None):
        yield from (_at_its_line(one, copies) for one in hosts_that_stopped(progress, verdict))


def _by_log(log: LogFacts) -> Iterator[Finding]:
    yield from claimed(hosts_behind(log.ras), 90)
    if log.absences:
        yield from (_absent(absence, clue) for absence, clue in log.absences)
    elif log.not_joined:
        yield _not_joined(log.not_joined)
    elif missed := log.lines(ClueKind.MISSED_BARRIER):
        yield _missed(missed[0])
    elif log.silent:
        yield _silent(log.silent, list(log.timeouts.values()) or log.unnumbered, log)
    elif log.silent_beside_gloo:
        yield _silent_beside_gloo(log)
    yield from (_gil_held(clue) for clue in log.lines(ClueKind.GIL_HELD)[:1])


def _absent(absence: Absence, waiting: Clue) -> Finding:
    return from_line(
        waiting,
        f"did not come to {call_in(waiting)}: its host stopped",
        (absence.rank,),
        of_one_group(waiting.group),
        f"{named(absence.waiting)} timed out in it; rank {absence.rank} called nothing after #{absence.last}, "
        "which it completed",
        Prescription("bound-the-wait", change=f"look at what rank {absence.rank} did after its last call; {LOOK}"),
        specificity=45,
    )


def _not_joined(told: list[Clue]) -> Finding:
    ranks = sorted({clue.numbers[0] for clue in told})
    return from_line(
        told[0],
        f"did not come to #{told[0].numbers[1]}, as torch's desync report says",
        ranks,
        LIKELY,
        f"line {told[0].line_number} of the log",
        Prescription("bound-the-wait", change=f"look at what {named(ranks)} did after its last call; {LOOK}"),
        specificity=45,
    )


def _unranked(log: LogFacts) -> Iterator[Finding]:
    """Of what faulthandler dumped into a log that does not say whose lines are whose: who is in code of its own while the others
    wait."""
    stacks = log.recording.stacks
    processes = stacks.unranked if stacks is not None and not (stacks.ranks or stacks.later) else ()
    standings = [standing_of(RankStacks(-1, one), log.recording.sources) for one in processes]
    waiting = [one for one in standings if one.waits_for_ranks]
    stuck = [one for one in standings if one.doing in (*OWN_CODE, Activity.DATA)]
    lost = sorted(log.left_alone)
    if not (waiting or lost) or len(stuck) != 1 or len(waiting) + 1 != len(standings):
        return
    first, others = stuck[0], _who_waits_for_it(waiting) if waiting else f"and {named(lost)} lost it"
    ranks = _by_order_of_exits(standings, log)
    rank = tuple(ranks[at] for at, one in enumerate(standings) if one is first) if ranks else ()
    whose = "the tracebacks do not say whose they are"
    if first.process is not None and first.process.printed_by:
        whose = f"it was printed under {first.process.printed_by}, and the log does not say which rank that is"
    if rank:
        whose += f": {named(rank)} was the first that ended by itself, as this one was dumped first"
    dumped = "one process" if len(standings) == 1 else f"{len(standings)} processes"
    words = first.words if rank else f"one process {first.words}"
    yield Finding(
        title=f"{words} ({_ways(first)}), {others}",
        ranks=rank,
        confidence=LIKELY,
        place=first.site,
        places=(Place(first.site, rank, first.words), *(Place(one.site, (), one.words) for one in waiting[:1])),
        why=f"faulthandler dumped {dumped} into the log, and this one is in no collective; {whose}",
        prescriptions=(
            Prescription(
                "bound-the-wait", change=f"look at what keeps the process at {first.site.short}; give it a timeout"
            ),
        ),
        explains=(KEY,),
        specificity=BY_COPIES,
    )


def _who_waits_for_it(waiting: Sequence[RankActivity]) -> str:
    """`2 others wait inside backward`."""
    calls = {one.words.removeprefix("waits ") for one in waiting}
    others = f"{len(waiting)} other{' waits' if len(waiting) == 1 else 's wait'}"
    return f"{others} {calls.pop() if len(calls) == 1 else 'for it'}"


def _ways(standing: RankActivity) -> str:
    """`train.py:30, called from add at train.py:27`: the user's line, and the one that led to it."""
    thread = standing.process.main if standing.process is not None else None
    users = [frame for frame in thread.frames if frame.is_users] if thread is not None else []
    led = f", called from {users[1].function} at {users[1].site.short}" if len(users) > 1 else ""
    return f"{standing.site.short}{led}"


def _by_order_of_exits(standings: Sequence[RankActivity], log: LogFacts) -> list[int]:
    """Whose the stacks are, in their order: a process that dumps itself after a timeout and exits does so when its own time is
    up. [] where not just as many ranks exited by themselves, or two of them in one second."""
    alone, job = log.left_alone, log.recording.job
    ends = {r: e for r, e in job.ends.items() if e.exit_code and not e.ended_by_launcher and r not in alone}
    ordered = sorted(ends, key=lambda rank: ends[rank].at_ns)
    times = [ends[rank].at_ns for rank in ordered]
    return ordered if len(ordered) == len(standings) and len(set(times)) == len(times) else []


def _missed(clue: Clue) -> Finding:
    ranks = tuple(sorted(set(clue.numbers)))
    return from_line(
        clue,
        "did not come to a monitored_barrier in time",
        ranks,
        LIKELY,
        f"{named(who(clue)) if who(clue) else 'a rank'} waited for {named(ranks)} there",
        Prescription("bound-the-wait", change=f"look at what {named(ranks)} did instead; {LOOK}"),
        specificity=45,
    )


def _silent(silent: tuple[int, ...], timeouts: list[Clue], log: LogFacts) -> Finding:
    first, others = timeouts[0], named(clue.rank for clue in timeouts)
    stood = {clue.rank: clue.site for clue in log.lines(ClueKind.PEER_GONE) if clue.rank in silent and clue.site}
    site = stood[min(stood)] if stood else SourceLine()
    where = f"waited elsewhere, at {site.short}," if site else "printed no timeout,"
    found = from_line(
        first,
        f"{where} while {others} timed out in {call_in(first)}: it had not come there",
        silent,
        POSSIBLE,
        f"its own error says where it was when its peers were ended; that of {named(stood)} shows the line"
        if site
        else "whoever waits for nobody prints nothing: it was held up elsewhere, or its lines are not in this log",
        Prescription("bound-the-wait", change=f"look at what {named(silent)} did; {LOOK}"),
        specificity=30,
    )
    return replace(found, place=site or found.place)


def _silent_beside_gloo(log: LogFacts) -> Finding:
    silent = log.silent_beside_gloo
    waited = {clue.rank: clue for clue in log.lines(ClueKind.WAITED)}
    first = waited[min(waited)]
    last = [words for rank in silent if (words := log.last_words(rank)) is not None]
    said = "".join(f"; the last line of rank {one.rank} is {one.line_number}: `{one.words[:120]}`" for one in last[:2])
    return from_line(
        first,
        f"printed no error, while {named(waited)} gave up waiting{f' at {first.site.short}' if first.site else ''}: it had "
        "not come there",
        tuple(silent),
        LIKELY if len(silent) == 1 < len(waited) else POSSIBLE,
        "whoever waits for nobody prints nothing, and torchrun then ends it; which rank it lists first says nothing"
        + said,
        Prescription("bound-the-wait", change=f"look at what {named(silent)} did; {LOOK}"),
        specificity=30,
    )


def _gil_held(clue: Clue) -> Finding:
    whose = named(who(clue)) if clue.rank >= 0 else "that rank"
    return from_line(
        clue,
        "torch could not get this rank's interpreter lock (GIL): a thread keeps it",
        who(clue),
        LIKELY,
        "torch asked for it for 300 ms after its watchdog had stood for minutes; meanwhile no line of the rank's Python runs",
        Prescription(
            "bound-the-wait",
            change=f"run `distdoctor hang-dump` while it stands: it names the thread, function and line of {whose} that keep it",
        ),
        specificity=50,
    )


def _seen(standstill: Stall) -> Iterator[Finding]:
    """By stacks."""
    starved = [s for s in standstill.standings.values() if s.process is not None and s.process.gil_thread is not None]
    if starved and standstill.exceeds_patience(standstill.waited_seconds):
        yield from (_starved(standing, standstill) for standing in starved)
        return
    if standstill.in_own_code:
        yield _all_of_them(standstill)
        return
    locked_out = _locked_out(standstill)
    yield from _keep_locks(standstill, locked_out)
    stuck: dict[tuple[object, ...], list[RankActivity]] = {}
    for standing in standstill.of_kind(*OWN_CODE, Activity.COMPUTING):
        alone = len(standstill.standings) > 1 and not any(o.rank != standing.rank for o in standstill.waiting)
        at_start = any(True for _ in standstill.of_kind(Activity.INIT))  # then it is late, which DD118 says
        if standing.rank in standstill.explained or standing.rank in locked_out or alone or at_start:
            continue
        if standing.doing is Activity.COMPUTING or not standstill.is_stuck(standing):
            if standstill.is_alone_at_work(standing):
                yield _at_work(standing, standstill)
            continue
        obstacle = obstacle_of(standing, standstill.stacks, standstill.recording.sources)
        stuck.setdefault((standing.site, standing.words, obstacle.words if obstacle else ""), []).append(standing)
    for standings in stuck.values():  # in one moment of a job that goes on, ranks are here and there
        if not standstill.is_one_moment or len(standstill.standings) == 1 or standstill.awaited_by_all(standings):
            yield _stuck(standings, standstill)


def _at_its_line(finding: Finding, copies: Stall | None) -> Finding:
    """What dumps or a log say of one rank, with the line at which its stack shows it."""
    standing = copies.standings.get(finding.ranks[0]) if copies is not None and len(finding.ranks) == 1 else None
    if copies is None or standing is None or standing.process is None or not standing.site:
        return finding
    seen = Place(standing.site, (standing.rank,), standing.words)
    others = [one for one in finding.places if one.ranks != (standing.rank,)] or copies.places(standing)[1:]
    why = f"{finding.why}; {copies.looks}" if copies.is_one_moment else finding.why
    # Where it waits in another call than the others, that is the better claim.
    explains = (*finding.explains, APART) if standing.waits_for_ranks else finding.explains
    found = replace(finding, place=standing.site, places=(seen, *others), why=why, explains=explains)
    asks_for_stack = any(one.change == STACKS for one in finding.prescriptions)
    if not asks_for_stack or standing.waits_for_ranks:
        return found
    obstacle = obstacle_of(standing, copies.stacks, copies.recording.sources)
    change = obstacle.change if obstacle else _change(standing, copies)
    return replace(found, prescriptions=(Prescription("bound-the-wait", change=change),))


def _with_dumps(finding: Finding, progress: DeviceProgress, verdict: Verdict | None) -> Finding:
    """What copied stacks show, with what the dumps beside them say of the same rank."""
    absence = next((one for rank in finding.ranks if (one := progress.missed_by(rank)) is not None), None)
    if absence is None:
        return finding
    has = "has" if len(absence.waiting) == 1 else "have"
    issued = f"rank {absence.rank} has issued up to #{absence.last}"
    if absence.rank not in progress.states:
        issued = f"rank {absence.rank} left no dump"
    why = f"{named(absence.waiting)} {has} enqueued {absence.call.words}, {issued}"
    ending = verdict.endings.get(absence.rank) if verdict is not None else None
    over = ending is not None and ending.printed and ending.how != RAISED  # then it was ended where it stood
    return replace(
        finding,
        confidence=LIKELY,
        severity=None,
        why=f"{why}; {finding.why}",
        explains=(*finding.explains, end_of(absence.rank)) if over else finding.explains,
        specificity=BY_COPIES if over else finding.specificity,
    )


def lacks_threads(standing: RankActivity, standstill: Stall) -> list[str]:
    """What threads all other ranks run and this one does not: whoever was to feed a queue may have died."""
    mine = _threads(standing)
    others = [
        _threads(one) for one in standstill.standings.values() if one.rank != standing.rank and one.process is not None
    ]
    missing = [way for way in (others[0] if others else {}) if way not in mine and all(way in one for one in others)]
    found = []
    for way in missing[:2]:
        name, site = others[0][way]
        ranks = named(one.rank for one in standstill.standings.values() if one.rank != standing.rank)
        found.append(
            f"{ranks} run the thread {name} ({way[1]}, {site.short}), rank {standing.rank} has none: it may have ended"
        )
    return found


def _threads(standing: RankActivity) -> dict[tuple[str, str], tuple[str, SourceLine]]:
    """By the function of the user's that a thread runs: its name, and where it is."""
    process = standing.process
    threads = [one for one in process.threads if one is not process.main] if process is not None else []
    ways = ((one, [frame for frame in one.frames if frame.is_users]) for one in threads)
    return {
        (users[-1].path, users[-1].function): (one.name, users[0].site) for one, users in ways if users and one.name
    }


def _stuck(standings: Sequence[RankActivity], standstill: Stall) -> Finding:
    """Ranks that stand still at one line of their own code."""
    first = standings[0]
    by_key = of_awaited_key(standings, standstill, _why(first, standstill))
    if by_key is not None:
        return by_key
    obstacle = obstacle_of(first, standstill.stacks, standstill.recording.sources)
    mine, *others = standstill.places(*standings)
    also = obstacle.also if obstacle is not None else ()
    title = standstill.since(first) if len(standings) == 1 else of_several(standstill.since(first))
    ranks = tuple(one.rank for one in standings)
    failed = _failed_threads(standings, standstill)
    of_others = _failed_threads([s for s in standstill.standings.values() if s not in standings], standstill)
    everywhere = {one.site for one in of_others.values()}  # what ranks met that go on is no cause
    error = next((one for one in failed.values() if not one.kept and one.site not in everywhere), None)
    if obstacle is not None and KEY_OF_STORE in obstacle.facts:  # another rank is to set it, maybe in a task of its own
        fix = "".join(f"fix the error at {one.site.short} on rank {rank}; " for rank, one in of_others.items())
        failed, obstacle = failed | of_others, replace(obstacle, change=f"{fix}{obstacle.change}")
    if obstacle is not None and obstacle.words and error is not None:  # it waits for what that thread owes
        obstacle = replace(
            obstacle,
            words=f"{obstacle.words}, and its {_thread(error)} ended with {error.words}",
            change=f"fix the error at {error.site.short} in the {_thread(error)}, and hand errors of it on to whoever waits at "
            f"{first.site.short}, which asks for ever else",
            place=error.site,
        )
    return Finding(
        title=title + (f": {obstacle.words}" if obstacle and obstacle.words else ""),
        ranks=ranks,
        confidence=standstill.confidence(*standings),
        place=(obstacle.place if obstacle else None) or first.site,
        places=(
            *(Place(one.site, (rank,), _end_of(one)) for rank, one in failed.items()),
            mine,
            *(Place(site, ranks, words) for site, words in also),
            *(Place(site, (), words) for site, words in (obstacle.of_others if obstacle is not None else ())),
            *_kept_lock(first, standstill),
            *others,
            *decision_places(_awaited(first, standstill), {first.site}),
        ),
        evidence=evidence_of(first.process) | _children(first) | (dict(obstacle.facts) if obstacle else {}),
        why=_why(first, standstill),
        prescriptions=(
            Prescription("bound-the-wait", change=obstacle.change if obstacle else _change(first, standstill)),
        ),
        severity=WARNING if standstill.stacks.copies and not (standstill.explains or standstill.is_backed) else None,
        explains=standstill.explains,
        specificity=BY_COPIES if standstill.explains else None,
    )


def _failed_threads(standings: Sequence[RankActivity], standstill: Stall) -> dict[int, ThreadFailed]:
    """By rank the newest thread that an exception has ended, where that is on record."""
    logs = {one.rank: standstill.recording.ranks.get(one.rank) for one in standings}
    noted = {rank: list(log.noted(ThreadFailed)) for rank, log in logs.items() if log is not None}
    return {rank: events[-1] for rank, events in noted.items() if events and events[-1].site}


def _end_of(error: ThreadFailed) -> str:
    if error.kept:
        return f"a task of its {_thread(error)} failed here, and its future keeps that: {error.words}"
    return f"its {_thread(error)} ended here: {error.words}"


def _thread(error: ThreadFailed) -> str:
    return f"thread {error.thread}" if error.thread else "thread"


def _locked_out(standstill: Stall) -> dict[int, int]:
    """By rank that waits for a file lock, the rank that keeps it, where whatever holds that one up is the cause."""
    standings = standstill.standings
    unknown = (Activity.GONE, Activity.UNREADABLE)
    found = {r: keeper for r, keeper in lock_keepers(standings).items() if standings[keeper].doing not in unknown}
    return {
        rank: keeper
        for rank, keeper in found.items()
        if not standings[keeper].waits_for_ranks or _waits_for_all_of(keeper, found, standstill)
    }


def _waits_for_all_of(keeper: int, locked_out: Mapping[int, int], standstill: Stall) -> bool:
    """Whether a rank waits in a call that needs those which ask for its lock: one of all ranks, or there is nobody else."""
    holder = standstill.standings[keeper]
    asking = [standstill.standings[rank] for rank, one in locked_out.items() if one == keeper]
    elsewhere = [one.rank for one in standstill.others if one not in asking]
    needed = not elsewhere or _needs(holder, {one.rank for one in asking}, standstill)
    return needed and all(standstill.is_stuck(one) for one in asking)


def _needs(holder: RankActivity, ranks: set[int], standstill: Stall) -> bool:
    """Whether the call that a rank waits in is of a group with these members, as recorded, or as its line says."""
    facts = derived(Collectives, standstill.recording)
    timeline = facts.timelines.get(holder.rank)
    if timeline is not None and timeline.sitting:
        call = timeline.sitting[0]
        group = facts.group_of(call)
        return group is not None and call.op in OF_ALL and ranks <= set(group.members)
    if holder.op not in OF_ALL or holder.call not in GROUP_AT:
        return False
    call_here = only_call(standstill.recording.sources, holder.site, holder.call)
    if call_here is None or any(one.arg in (None, "group") for one in call_here.keywords):
        return False
    return len(call_here.args) <= GROUP_AT[holder.call]


def _keep_locks(standstill: Stall, locked_out: Mapping[int, int]) -> Iterator[Finding]:
    """Ranks that hold a file lock in a call which cannot end before those have come that wait for the lock."""
    for keeper in sorted(set(locked_out.values())):
        holder = standstill.standings[keeper]
        if holder.waits_for_ranks:
            asking = [standstill.standings[rank] for rank, one in sorted(locked_out.items()) if one == keeper]
            yield _keeps_lock(holder, asking, standstill)


def _keeps_lock(holder: RankActivity, asking: list[RankActivity], standstill: Stall) -> Finding:
    """A rank waits for others while it holds what they wait for."""
    waits = [one.process.waits_for for one in asking if one.process is not None and one.process.waits_for is not None]
    path, ranks = waits[0].path, named(one.rank for one in asking)
    where = asking[0].site.short
    return Finding(
        title=f"holds the lock on {path} while it {holder.words}{standstill.how_long(holder)}; {ranks} cannot come there "
        "without that lock",
        ranks=(holder.rank,),
        confidence=standstill.confidence(holder),
        place=holder.site,
        places=standstill.places(holder, *asking),
        evidence=evidence_of(holder.process) | {"file": path, "lock asked for by": ranks},
        why=f"{ranks} {'waits' if len(asking) == 1 else 'wait'} in {waits[0].call}() at {where} for a lock that rank "
        f"{holder.rank} holds (/proc/locks), and rank {holder.rank} waits for {'it' if len(asking) == 1 else 'them'}",
        prescriptions=(
            Prescription(
                "bound-the-wait",
                change=f"release {path} on rank {holder.rank} before {holder.site.short}, where it {holder.words}",
            ),
        ),
        delays=tuple(one.rank for one in asking),
    )


def _awaited(standing: RankActivity, standstill: Stall) -> Decision | None:
    """The condition of the loop in which a rank polls."""
    try:
        return awaited_condition(standstill.recording.sources, standing.site)
    except RecursionError:  # generated code
        return None


def _unreleased(standing: RankActivity, standstill: Stall) -> Unreleased | None:
    """The lock that a rank waits for, where an exception keeps it taken."""
    thread = standing.process.main if standing.process is not None else None
    sites = [frame.site for frame in thread.frames if frame.is_users] if thread is not None else []
    return unreleased_at(standstill.recording.sources, sites)


def _kept_lock(standing: RankActivity, standstill: Stall) -> tuple[Place, ...]:
    lock = _unreleased(standing, standstill)
    if lock is None:
        return ()
    skipped = Place(lock.released, (), f"`{lock.text}` is not reached when something between raises")
    return (Place(lock.taken, (), "takes the lock"), skipped)


def _all_of_them(standstill: Stall) -> Finding:
    """No rank is in communication, and none moves: each is stuck by itself, or all of them pause."""
    first, *others = standings = standstill.in_own_code
    keeps = dict.fromkeys(place for one in standings for place in _kept_lock(one, standstill))
    where = f"each {first.words}" if all(one.words == first.words for one in others) else "each in its own code"
    quiet = standstill.quiet_seconds
    return Finding(
        title=f"have not moved{f' for {quiet:.0f} s' if quiet else ''}, and none waits for another: {where}",
        ranks=tuple(one.rank for one in standings),
        confidence=POSSIBLE,
        severity=WARNING if quiet is None or quiet >= PAUSE_SECONDS else NOTE,
        place=first.site,
        places=(*standstill.places(), *keeps),
        evidence=evidence_of(first.process) | _children(first),
        why="; ".join(
            (_why(first, standstill), "no rank is in a collective, so no timeout of a process group will end this")
        ),
        prescriptions=(
            Prescription("bound-the-wait", change=_change(first, standstill).replace(", or sleep on every rank", "")),
        ),
    )


def _starved(standing: RankActivity, standstill: Stall) -> Finding:
    """Another thread never lets the GIL go: the main one waits for it, whatever else it seems to wait for."""
    process = standing.process
    assert process is not None
    assert process.gil_thread is not None
    thread = process.gil_thread
    frame = thread.user_frame or thread.frames[0]
    name = f"its thread {thread.name}" if thread.name else f"its thread {thread.os_id}"
    where = frame.site.short
    code = line_of(standstill.recording.sources, frame.site).strip()
    return Finding(
        title=f"has not moved{standstill.how_long(standing)}: {name} never releases the GIL, in {frame.function} at {where}"
        + (f": `{code[:60]}`" if code else ""),
        ranks=(standing.rank,),
        confidence=LIKELY,
        place=frame.site,
        places=(Place(frame.site, (standing.rank,), f"{name} holds the GIL here"), *standstill.places(standing)),
        evidence=evidence_of(process) | {"thread": thread.name, "function": frame.function},
        why="; ".join(
            [
                *([standstill.who_waits] if standstill.who_waits else []),
                f"rank {standing.rank} cannot run any other Python code: that thread was at the same line in every sample over "
                f"{standstill.stacks.observed_seconds:.1f} s",
            ]
        ),
        prescriptions=(
            Prescription(
                "bound-the-wait",
                change=f"bound the work of the call at {where} (smaller input, a simpler pattern), or do it in another process",
            ),
        ),
    )


def _at_work(standing: RankActivity, standstill: Stall) -> Finding:
    """It stays in one function while the others wait: a loop without end looks like this, and slow work as well."""
    process = standing.process
    assert process is not None
    assert process.lasting is not None
    site = process.lasting.site
    child = standstill.working_child(standing)
    does = "computes" if standing.is_busy else "looks again and again"
    if child is not None:
        does = f"waits for {child.command[:60]} (pid {child.pid}), which is at work"
    failed = _failed_threads([standing], standstill)  # whether it looks for what they owe is not seen
    return Finding(
        title=f"has been in {site.function} while the others wait{standstill.how_long(standing)}",
        ranks=(standing.rank,),
        confidence=POSSIBLE,
        severity=WARNING,
        place=site,
        places=(
            *(Place(one.site, (rank,), _end_of(one)) for rank, one in failed.items()),
            Place(site, (standing.rank,), "was inside this call in every sample"),
            *standstill.places(standing),
        ),
        evidence=evidence_of(process) | {"thread": "main", "function": site.function},
        why=f"{standstill.who_waits}; the main thread of rank {standing.rank} was in {site.function} in every sample over "
        f"{standstill.stacks.observed_seconds:.1f} s and {does}: an endless loop, or slow work",
        prescriptions=(Prescription("bound-the-wait", change=_change(standing, standstill)),),
    )


def _children(standing: RankActivity) -> dict[str, object]:
    running = [f"{child.command[:60]} (pid {child.pid}, state {child.state})" for child in standing.seen.children]
    return {"child processes": running} if running else {}


def _why(standing: RankActivity, standstill: Stall) -> str:
    process = standing.process
    parts = [standstill.who_waits] if standstill.who_waits else []
    if process is not None and standing.keeps_gil:
        parts.append(
            f"rank {standing.rank} computes ({process.cpu_share:.0%} of a core) in one call that never releases the GIL"
        )
    elif process is not None and process.still_seconds is not None:
        parts.append(
            f"the main thread of rank {standing.rank} last ran {process.still_seconds:.0f} s ago (pid {process.pid})"
        )
    else:
        parts.append(standstill.looks)
    parts += lacks_threads(standing, standstill)
    parts += [f"it has started {child.command[:60]} (pid {child.pid})" for child in standing.seen.children[:1]]
    return "; ".join(parts)


def _change(standing: RankActivity, standstill: Stall) -> str:
    line = standing.line.strip()
    lock = _unreleased(standing, standstill)
    if lock is not None:
        return (
            f"call `{lock.text}` ({lock.released.short}) in a finally, or use `with`: whoever raises after "
            f"{lock.taken.short} keeps the lock for good"
        )
    path = standing.site.path.rpartition("/")[2]
    where = standing.where
    inner = standing.inner
    innermost = f"{inner.path}:{inner.function}" if inner is not None else ""
    polled = polled_at(standstill.recording.sources, standing.site) if "sleep(" in line or ".wait(" in line else None
    if polled is not None:
        return (
            f"find out why {polled.goes_on} ({path}:{polled.line}): whoever has to change that does so also when it fails "
            "(try/finally), and the loop ends after a while with an error that says what it waited for"
        )
    if "sleep(" in line:
        return f"remove the sleep at {where}, or sleep on every rank"
    if "input(" in line:
        return f"remove the prompt at {where}: a rank has no terminal"
    if "subprocess.py" in innermost:
        return f"give the subprocess at {where} a timeout: subprocess.run(..., timeout=60)"
    if "acquire(" in line or "threading.py" in innermost or line.startswith("with "):
        return f"give the lock at {where} a timeout (lock.acquire(timeout=60)) and find out who holds it"
    if standing.keeps_gil:
        return f"bound the work of the call at {where} (smaller input, a simpler pattern), or do it in another process"
    if standing.process is not None and standing.process.is_busy and standing.process.lasting is not None:
        return (
            f"end the loop of {standing.process.lasting.function} at {where} earlier, or share its work among all ranks"
        )
    return f"bound the wait at {where}, or do this on every rank"


SOURCE = "\n" * 56 + "    lock.acquire()\n"


def sick() -> Recording:
    """Rank 1 waits for a lock that nobody opens."""
    return looked_at(in_collective(0), rank(1, frame("train.py:57 save")), sources={"train.py": SOURCE})


def healthy() -> Recording:
    """Rank 1 is in the same line, and at work."""
    busy = rank(1, frame("train.py:57 save"), still=0.0, cpu_share=0.98)
    return looked_at(in_collective(0), busy, sources={"train.py": SOURCE})
