"""
DD118 missing-rank-at-start: init_process_group waits for ranks that never joined.

What it means    Some ranks are inside init_process_group and others have not reached it: they were not started, are still busy
                 before it, or have ended.
Why it hurts     The rendezvous waits for WORLD_SIZE ranks until its timeout (30 min with gloo, 10 min with NCCL).
How we know      The recordings show which ranks have entered init_process_group, and no rank has moved for half a minute. Ranks
                 that can never meet are reported after eight seconds: they ask for different world sizes, two ask for the same
                 rank, they ask for more ranks than the launcher has started, they use different addresses, or the script names
                 another port than torchrun's, where no rank holds a store. Where all ranks are inside, and not for the first
                 time, that is told after half a minute. Seen from outside, a rank whose process is gone while its launcher
                 lives is missed at once.
What to do       Start all ranks; check WORLD_SIZE, the node count and the code that runs before init_process_group. Under
                 torchrun leave MASTER_ADDR and MASTER_PORT alone; a script that starts its ranks itself needs no torchrun.
When it is fine  Ranks whose imports or loading take less than half a minute longer than the others'.
Source           torch.distributed.init_process_group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, LIKELY, POSSIBLE, WARNING, Finding, Place, Prescription, Stalls
from distdoctor.diagnosis.hang.in_logs import LogFacts, from_line
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.live.at_start import seen_at_start
from distdoctor.diagnosis.hang.live.stall import Stall
from distdoctor.diagnosis.hang.rendezvous import InitCall, Misfit, inside_again, misfit, waiting_inside
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import at, decision_places, have_waited, seconds, wait
from distdoctor.recording.clue import Clue, ClueKind
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import InitBegun, InitDone
from distdoctor.testing import TraceBuilder
from distdoctor.testing.rank_trace import SECOND, START_NS

_ADDRESS = re.compile(r"trying to connect to \(?([\w.:\[\]-]{1,200}(?:, \d{1,5})?)")
_UNKNOWN_NAME = re.compile(r"host not found|cannot be retrieved")
# NCCL's words for processes that were not started as the ranks of one job.
_MISNUMBERED = (
    (
        r"Bootstrap Root : rank (\d{1,7}) of (\d{1,7}) ranks has already checked in",
        "two processes came as rank {} of {}",
    ),
    (r"Invalid rank requested : (\d{1,7})/(\d{1,7})", "a process came as rank {} of {} ranks, which there cannot be"),
    (r"Bootstrap Root : mismatch in rank count from procs (\d{1,7}) : (\d{1,7})", "some expect {} ranks, others {}"),
)
IN_LOG = 35  # how specific it is of what a job log shows


@check(
    "DD118",
    "missing-rank-at-start",
    severity=ERROR,
    family="hang",
    formerly=("DD127 told-by-the-log",),
    stalls=Stalls.MAYBE,
)
def examine(verdict: Verdict | None, standstill: Stall | None, log: LogFacts | None) -> Iterator[Finding]:
    if log is not None:
        yield from _by_log(log)
    if standstill is not None and (verdict is None or misfit(verdict.facts) is None):
        yield from seen_at_start(standstill)
    elif verdict is not None:
        yield from (_finding(verdict, incident) for incident in verdict.of_kind(IncidentKind.NEVER_CAME))


def _by_log(log: LogFacts) -> Iterator[Finding]:
    joined = log.lines(ClueKind.JOINED)
    if joined and (not log.never_wrote or joined[0].numbers[0] < joined[0].numbers[1]):
        yield _too_few(joined[0], log)  # whoever waits for a key then waits for one of those that wait for the others
    elif log.never_wrote:
        yield _never_wrote(log.never_wrote, log.lines(ClueKind.NOT_ARRIVED)[0])
    elif unreachable := log.lines(ClueKind.UNREACHABLE):
        yield _nobody_answered(unreachable)
    elif agents := log.lines(ClueKind.AGENTS):
        yield _agents_did_not_answer(agents[0])
    elif loopback := _harmful_loopback(log):
        yield _on_loopback(loopback)
    warned = [(clue, words) for clue in log.lines(ClueKind.WARNING) if (words := _misnumbered(clue))]
    yield from (_cannot_be_one_job(clue, words) for clue, words in warned[:1])


def _harmful_loopback(log: LogFacts) -> list[Clue]:
    """Where gloo took such an address and something failed; on one host it is harmless."""
    found = log.lines(ClueKind.LOOPBACK)
    return found if any(clue.numbers for clue in found) or not log.tells_of_no_end else []


def _misnumbered(clue: Clue) -> str:
    found = ((re.search(pattern, clue.words), words) for pattern, words in _MISNUMBERED)
    return next((words.format(*match.groups()) for match, words in found if match), "")


def _cannot_be_one_job(clue: Clue, words: str) -> Finding:
    return from_line(
        clue,
        words,
        (),
        LIKELY,
        "NCCL says so; each process must have a number of its own, below a world size that all agree on",
        Prescription(
            "start-every-rank",
            change="take the rank and the world size from RANK and WORLD_SIZE, which the launcher sets for each process, and "
            "give each node its own --node-rank",
        ),
        IN_LOG,
    )


def _never_wrote(ranks: tuple[int, ...], clue: Clue) -> Finding:
    return from_line(
        clue,
        f"{'has' if len(ranks) == 1 else 'have'} not come: others wait for its key in the store",
        ranks,
        LIKELY,
        "the key ends in the rank within its group that never wrote it",
        Prescription(
            "start-every-rank",
            change=f"find out whether {named(ranks)} was started, and what it did before init_process_group",
        ),
        IN_LOG,
    )


def _too_few(clue: Clue, log: LogFacts) -> Finding:
    came, expected = clue.numbers
    if came > expected:
        return _too_many(came, expected, clue)
    speak = {one.rank for one in log.recording.clues if one.rank >= 0}
    missing = tuple(rank for rank in range(expected) if rank not in speak) if len(speak) == came else ()
    came_words = f"only {came} of {expected} ranks came"
    if not missing and (apart := [clue for clue in log.lines(ClueKind.UNREACHABLE) if _ADDRESS.search(clue.words)]):
        return _cannot_reach(apart[0], came_words)
    return from_line(
        clue,
        f"did not come to the store: {came_words}" if missing else f"{came_words} to the store",
        missing,
        LIKELY,
        f"all others print something, and nothing here is of {named(missing)}"
        if missing
        else "which ones are missing it does not say",
        Prescription(
            "start-every-rank", change=f"start all {expected} ranks with the same MASTER_ADDR and MASTER_PORT"
        ),
        IN_LOG,
    )


def _cannot_reach(clue: Clue, came: str) -> Finding:
    address = _ADDRESS.search(clue.words)
    where = f" at {address[1]}" if address else ""
    return from_line(
        clue,
        f"{came} to the store: another got no answer from it{where}",
        (),
        LIKELY,
        "one side waited at the store, the other got no answer in the same time",
        Prescription(
            "start-every-rank",
            change="try `nc -vz HOST PORT` from the one that got no answer: a firewall, a network policy or a wrong address is "
            "between them",
        ),
        IN_LOG,
    )


def _agents_did_not_answer(clue: Clue) -> Finding:
    agents = named(clue.numbers).replace("rank", "agent")
    return from_line(
        clue,
        f"torchrun's {agents} did not write who they are into the store in time, so no rank was started",
        (),
        LIKELY,
        "an agent is one host's torchrun; where its own one is among them, the store itself did not answer",
        Prescription(
            "start-every-rank",
            change="see whether torchrun still runs on every host and what it printed, and whether the host that holds the store "
            "is overloaded or gone",
        ),
        IN_LOG,
    )


def _on_loopback(clues: list[Clue]) -> Finding:
    ranks = sorted({clue.rank for clue in clues if clue.rank >= 0})
    found = from_line(
        clues[0],
        "gloo found no address of its host and took the loopback one, which other hosts cannot reach",
        ranks,
        POSSIBLE,
        "gloo says so; on one host it is harmless",
        Prescription(
            "start-every-rank",
            change="set GLOO_SOCKET_IFNAME to the interface between the hosts, or let the host's name resolve to its address",
        ),
        IN_LOG,
    )
    return replace(found, severity=WARNING)


def _too_many(came: int, expected: int, clue: Clue) -> Finding:
    return from_line(
        clue,
        f"{came} processes came to the store, of {expected} ranks",
        (),
        LIKELY,
        "ranks that were started again, or another job, came to the same store",
        Prescription(
            "start-every-rank",
            change="end what is left of an earlier start, and give each job a MASTER_PORT (or a file for the store) of its own",
        ),
        IN_LOG,
    )


def _nobody_answered(clues: list[Clue]) -> Finding:
    found = next((at for clue in clues if (at := _ADDRESS.search(clue.words))), None)
    where = f"at {found[1]}" if found else "where the ranks are to meet"
    unnamed = _UNKNOWN_NAME.search(clues[0].words)
    if "RendezvousTimeoutError" in clues[0].words:
        return _nodes_did_not_come(clues[0])
    return from_line(
        clues[0],
        "the host that is to hold the store is not known by its name"
        if unnamed
        else f"the store {where} did not answer",
        (),
        LIKELY,
        "the host that is to hold it was not started, has ended, or cannot be reached from there",
        Prescription(
            "start-every-rank",
            change="start the host that holds it first, and try `nc -vz HOST PORT` from the one that printed this",
        ),
        IN_LOG,
    )


def _nodes_did_not_come(clue: Clue) -> Finding:
    return from_line(
        clue,
        "torchrun waited in vain for other nodes: fewer than --nnodes came in time, and no rank was started",
        (),
        LIKELY,
        "its rendezvous timed out; which nodes are missing it does not say",
        Prescription(
            "start-every-rank",
            change="start torchrun on every node with the same --nnodes, --rdzv-id and --rdzv-endpoint, and try `nc -vz "
            "HOST PORT` from the missing ones; if they start late, raise --rdzv-conf join_timeout=SECONDS",
        ),
        IN_LOG,
    )


def _finding(verdict: Verdict, incident: Incident) -> Finding:
    apart = misfit(verdict.facts)
    if apart is not None:
        return _cannot_meet(verdict, incident, apart)
    again = inside_again(verdict.facts)
    if again:
        return _never_meet_again(incident, again)
    inside = sorted(verdict.facts.timelines.keys() - set(incident.ranks))
    begun = {rank: entered.site for rank in inside for entered in verdict.timeline(rank).log.noted(InitBegun)}
    place = begun[min(begun)] if begun else SourceLine()
    unstarted = [rank for rank in incident.ranks if rank not in verdict.facts.timelines]
    silent = incident.silence.seconds if incident.silence else 0.0
    words = [f"{wait(inside)} in init_process_group for {verdict.recording.world_size} ranks"]
    if unstarted:
        words.append(f"{named(unstarted)} left no trace at all")
    ended = [rank for rank in incident.ranks if rank in verdict.endings]
    if ended:
        words.append(f"{named(ended)} ended before reaching it")
    return Finding(
        title=f"never joined init_process_group, where {have_waited(inside)} for {seconds(silent)}",
        ranks=incident.ranks,
        confidence=incident.confidence,
        place=place,
        places=(
            *(
                Place(site, tuple(rank for rank, one in begun.items() if one == site), "waits in init_process_group")
                for site in dict.fromkeys(begun.values())
            ),
            *decision_places(incident.decision, set(begun.values())),
        ),
        evidence={"arrived": inside, "missing": list(incident.ranks), "world_size": verdict.recording.world_size},
        why="; ".join(words),
        prescriptions=(
            Prescription(
                "start-every-rank",
                change=f"start {named(incident.ranks)}, or launch only the {len(inside)} that there are",
            ),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _never_meet_again(incident: Incident, calls: list[InitCall]) -> Finding:
    """Everybody is there, and not for the first time."""
    silent, first = incident.silence.seconds if incident.silence else 0.0, calls[0]
    return Finding(
        title=f"have all been in init_process_group for {seconds(silent)}, which is not their first: it does not complete",
        ranks=incident.ranks,
        confidence=incident.confidence,
        place=first.site,
        places=tuple(Place(call.site, (call.process,), f"asks for rank {call.rank} of {call.size}") for call in calls),
        evidence={"asked": {call.process: {"rank": call.rank, "address": call.address} for call in calls}},
        why="ranks find each other by keys in the store; where a new group uses the store of one that was destroyed, they read "
        "the addresses that the old one left there",
        prescriptions=(
            Prescription(
                "start-every-rank",
                change=f"give the group at {at(first.site)} a store of its own: another port in init_method, or "
                "store=dist.PrefixStore(str(number), store) with a number that grows",
            ),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _cannot_meet(verdict: Verdict, incident: Incident, apart: Misfit) -> Finding:
    calls = waiting_inside(list(verdict.facts.timelines.values()))
    silent = incident.silence.seconds if incident.silence else 0.0
    return Finding(
        title=apart.text,
        ranks=incident.ranks,
        confidence=incident.confidence,
        place=apart.site,
        places=tuple(
            Place(call.site, (call.process,), f"asked for rank {call.rank} of {call.size} at {call.address}")
            for call in calls
        ),
        evidence={
            "asked": {
                call.process: {"rank": call.rank, "world_size": call.size, "address": call.address} for call in calls
            },
            "world_size": verdict.recording.world_size,
        },
        why=f"{wait([call.process for call in calls])} inside init_process_group for {seconds(silent)}",
        prescriptions=(Prescription("start-every-rank", change=apart.change),),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _starting(late: bool) -> Recording:
    from distdoctor.recording.recording import Job

    logs = {}
    for rank in range(4):
        log = TraceBuilder(rank, world_size=4)
        log.now = START_NS
        if rank != 2 or not late:
            log.note(InitBegun("gloo"), site="train.py:5 main")
        if not late:
            log.note(InitDone(4))
        logs[rank] = log.build()
    return Recording(Job(world_size=4, running=True, read_at_ns=START_NS + 45 * SECOND), logs)


def sick() -> Recording:
    return _starting(late=True)


def healthy() -> Recording:
    return _starting(late=False)
