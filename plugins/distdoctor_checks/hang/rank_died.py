"""
DD110 rank-died: one rank died of an exception, a signal or the OOM killer; the others wait for it or fail with it.

What it means    This rank failed first, on its own. The errors of the other ranks ("Connection closed by peer", timeouts,
                 aborts) are consequences.
Why it hurts     Every other rank prints such an error, later and louder, and torchrun often reports one of them as the root
                 cause.
                 An error in a `try` whose `finally` (or the exit of a context) calls a collective does not even get that far:
                 the rank waits there, and its traceback is never printed.
How we know      The exception that ended the interpreter is on record with the user's line, or the process died from a signal
                 that neither the launcher nor distdoctor sent. Ranks whose error, or one that it was raised from, says that
                 they lost a peer do not count, nor do those that exit with a code out of a call that failed. An
                 unexplained SIGKILL most likely comes from the kernel's OOM killer, unless its counters (memory.events of the
                 cgroup, /proc/vmstat) show that it did not act.
                 Of each collective it is on record whether an exception was being handled when it was issued: likely, where
                 one rank waits in such a call and others in another one.
                 In a log, faulthandler's traceback of a crash is that of the one rank that torchrun lists with its signal.
What to do       Fix the error on this rank.
When it is fine  Ctrl-C, SystemExit, and ranks that the launcher ended because of another rank.
Source           torch.distributed.elastic: the agent ends all ranks as soon as one fails, and reports the first failure that it
                 finds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import (
    CERTAIN,
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
from distdoctor.diagnosis.hang.ending import RAISED, SIGKILL, SIGNALLED, VANISHED, Ending, end_of, failures
from distdoctor.diagnosis.hang.error_cures import cure_of
from distdoctor.diagnosis.hang.held_errors import HeldError, held_error
from distdoctor.diagnosis.hang.in_logs import LogFacts, claimed, from_line, from_own_error, who
from distdoctor.diagnosis.hang.in_ras import dead_processes
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.live.apart import RanksApart
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import at, by_site, decision_places, full, short, wait
from distdoctor.diagnosis.source.prompts import prompt_before
from distdoctor.diagnosis.source.rank_guard import statement_at
from distdoctor.recording.clue import Clue, ClueKind
from distdoctor.recording.fault_dumps import SIGNALS as FAULTS
from distdoctor.recording.job_log import NCCL_SAYS
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import RankEnd, Recording, SourceLine
from distdoctor.testing import recording

# POSIX numbers of Linux; the names are what people search for.
SIGNALS = {1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
           11: "SIGSEGV", 13: "SIGPIPE", 15: "SIGTERM", 24: "SIGXCPU"}  # fmt: skip
SIGABRT = 6
OF_THE_STORE = ("TCPStore", "sendBytes failed", "recvValue failed")
LEFT_PROMPT = "BdbQuit"  # what pdb raises in the program where `q` is typed, or its input ends
# CUDA's words for memory, a link or a whole GPU that broke; an illegal access is the program's.
_OF_THE_DEVICE = re.compile(r"uncorrectable (?:ECC|NVLink)|fallen off the bus|hardware stack error", re.IGNORECASE)
_OF_A_KILL = re.compile(r"is killed by signal: Killed")  # an exception that only says that a helper was killed
_BY_CODE = re.compile(r"exit code", re.IGNORECASE)
_NO_JOB = "nothing in the log shows that it is of a distributed job"
# Incidents in which ranks wait in calls that do not belong together.
WAITING = (IncidentKind.DIVERGED, IncidentKind.STRAYED, IncidentKind.UNSENT, IncidentKind.RING)
OF_AN_ERROR = 75  # it says more than which calls do not belong together
MOST_INDEPENDENT = 3  # other exceptions that are told beside the first


@check(
    "DD110",
    "rank-died",
    severity=ERROR,
    family="hang",
    stands_alone=True,
    formerly=("DD126 ranks-apart", "DD127 told-by-the-log"),
    stalls=Stalls.FOREVER,
)
def examine(verdict: Verdict | None, log: LogFacts | None, apart: RanksApart | None) -> Iterator[Finding]:
    if apart is not None and apart.gone is not None and not apart.gone.ended_in_order:
        yield apart.gone.finding()
    if log is not None:
        yield from _by_log(log)
    if verdict is None:
        return
    for incident in verdict.of_kind(IncidentKind.FAILED, IncidentKind.ECHOED):
        yield _finding(verdict, incident) if incident.kind is IncidentKind.FAILED else _unknown(incident)
        yield from (_finding(verdict, other) for other in _independent(verdict, incident))
    for incident in verdict.of_kind(*WAITING):
        held = held_error(verdict, incident)
        if held is not None:
            yield _held_back(verdict, incident, held)


def _held_back(verdict: Verdict, incident: Incident, held: HeldError) -> Finding:
    """An error that is on its way out, and waits for the others in a call that these are not in."""
    call, error = held.calls[0], held.first
    ranks, raised = tuple(sorted(held.errors)), error.site or call.site
    places = {site: tuple(sorted(r for r, one in held.errors.items() if one.site == site)) for site in _sites(held)}
    return Finding(
        title=f"raised {error.words}, and waits in {short(call)} before anybody sees that",
        ranks=ranks,
        confidence=LIKELY,
        stalls=incident.stalls,
        place=raised,
        places=(
            *(Place(site, who, f"raised {held.errors[who[0]].words}") for site, who in places.items()),
            *by_site(verdict, held.calls, f"{full(call)}, called while that is being handled"),
            *by_site(verdict, held.others),
        ),
        evidence={"error": error.error, "call": full(call), "calls_since_it_was_raised": error.calls},
        why=f"{named(ranks)} called {call.op.word} at {at(call.site)} on the way out of an error (in a finally, an except, or "
        f"the exit of a context); the traceback is printed once that comes back, and {wait({one.rank for one in held.others})} "
        f"in {short(held.others[0])} at {at(held.others[0].site)}",
        prescriptions=(
            Prescription(
                "mend-the-first-failure",
                change=f"fix the error at {at(raised)}; and wait for nobody on the way out of an error: leave {at(call.site)} to "
                "the ways on which all ranks come there",
            ),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
        specificity=OF_AN_ERROR,
    )


def _sites(held: HeldError) -> list[SourceLine]:
    return list(dict.fromkeys(one.site for one in held.errors.values() if one.site))


def _by_log(log: LogFacts) -> Iterator[Finding]:
    """An error of its own explains whatever else a log shows; that a process ended or that a peer is gone explains little."""
    yield from claimed(dead_processes(log.ras), 94)
    killed, left = log.lines(ClueKind.KILLED_FOR_MEMORY), log.lines(ClueKind.EXIT_BARRIER)
    gone = [*log.lines(ClueKind.PEER_GONE), *log.lines(ClueKind.WAITED)]
    if log.own_error is not None and not (killed and _OF_A_KILL.search(log.own_error.words)):
        yield _own_error(log, log.own_error)
        yield from (_other_error(log, one) for one in log.other_errors)
    elif killed:
        yield _killed_for_memory(killed[0], log)
    elif task := log.first_task:
        yield _after_warning(_task_ended(task, log), log, task.line_number)
    elif log.first_ends:
        yield from claimed([_after_warning(_ended(log.first_ends, log.left_alone, log.crash), log)], 15)
    elif (ended := log.other_ends) and not (log.lines(ClueKind.NETWORK) and _BY_CODE.search(ended[0].operation)):
        found = _after_warning(_said_to_have_ended(ended[0]), log, ended[0].line_number)
        if _BY_LIMIT.search(ended[0].operation):
            found = replace(found, severity=NOTE, why=f"{found.why.partition(';')[0]}; it says of nothing that failed")
        yield (
            replace(found, severity=NOTE, why=f"{found.why}; the training goes on after it") if log.trains_on else found
        )
    elif left:
        yield _left_behind(left[0])
    elif gone and not log.goes_on_after(gone[-1]):
        yield replace(_peer_gone(gone), **({"severity": NOTE} if log.has_finished else {}))  # type: ignore[arg-type]


def _after_warning(finding: Finding, log: LogFacts, ended_at: int = 1 << 62) -> Finding:
    """The same of processes that ended, in that line of the log or in torchrun's table below it, with what NCCL had warned of
    last."""
    warned = [clue for clue in log.warnings if clue.line_number < ended_at][-1:]
    words = NCCL_SAYS.split(warned[0].words)[-1].strip() if warned else ""
    return replace(finding, why=f"{finding.why}; NCCL had warned: {words[:120]}") if words else finding


def _own_error(log: LogFacts, clue: Clue) -> Finding:
    kind = clue.words.partition(":")[0]
    words = " ".join(clue.words.split())
    if "device-side assert" in words and (printed := log.lines(ClueKind.PRINTED)):
        words += f" ({printed[0].words})"
    where = f" at {clue.site.short}" if clue.site else ""
    ranks = log.same_error(clue)
    how = "raised" if log.trains_on else "failed with"
    whose = how if ranks else f"a rank {how}" if log.is_of_a_job else f"a process {how}"
    also = "others failed by themselves as well" if log.other_errors else "the other errors are its consequences"
    change = f"fix the {kind}{where}" + (
        "" if len(ranks) > 1 and len(ranks) == len(log.recording.job.ends) else f"; {also}"
    )
    if log.trains_on:
        change = f"see whether what raised it{where} is needed: the program went on without it, or was started again"
    if _OF_THE_DEVICE.search(words):
        change = (
            f"drain the host{f' of rank {clue.rank}' if clue.rank >= 0 else ''} and look at its GPU (dmesg for Xid, "
            "nvidia-smi -q, dcgmi diag -r 3): the hardware failed, and where the program noticed it says nothing of the program"
        )
    elif cure := cure_of(words):
        change = cure
    found = from_own_error(
        log,
        f"{whose} {words[:160]}{' ...' if len(words) > 160 else ''}",
        Prescription("mend-the-first-failure", change=change),
        specificity=85,
    )
    if log.is_of_a_job or found.confidence is POSSIBLE:
        return found
    return replace(found, confidence=POSSIBLE, why=f"{found.why}; {_NO_JOB}")


def _other_error(log: LogFacts, clue: Clue) -> Finding:
    """A rank that failed in words of its own, which nobody's end explains."""
    words = " ".join(clue.words.split())
    found = from_line(
        clue,
        f"failed with {words[:160]}{' ...' if len(words) > 160 else ''}",
        log.same_error(clue),
        LIKELY,
        "it speaks of no lost peer and was raised outside of communication: mending the first error leaves this one",
        Prescription("mend-the-first-failure", change=f"fix this one at {clue.site.short} too"),
        specificity=0,
    )
    return replace(found, explains=())


def _killed_for_memory(clue: Clue, log: LogFacts) -> Finding:
    ranks = log.killed_for_memory
    task = next((one.operation for one in log.lines(ClueKind.ENDED) if "Out Of Memory" in one.operation), "")
    by_kernel = "Killed process" in clue.words
    said = f"{_who_says(clue)}{f' ({task})' if task and not by_kernel else f', and Slurm: {task}' if task else ''}"
    were = "were" if len(ranks) > 1 else "was"
    whose = (
        "a DataLoader worker"
        if log.own_error is not None and "DataLoader worker" in log.own_error.words
        else "a process"
    )
    return from_line(
        clue,
        f"{were} killed by the kernel for lack of memory" if ranks else f"{whose} was killed for lack of memory",
        ranks,
        LIKELY if len(ranks) == 1 or (ranks and by_kernel) else POSSIBLE,  # Slurm may list all tasks of a host
        said if ranks else f"{said}; which rank that was the log does not say",
        Prescription("mend-the-first-failure", change="give the host more memory, or the ranks and their loaders less"),
        specificity=85,
    )


def _who_says(clue: Clue) -> str:
    """Whose words a line of a kill for memory is in."""
    by = (("OOMKilled", "Kubernetes"), ("oom_kill event", "Slurm"), ("oom-kill event", "Slurm"), ("Workers (", "Ray"),
          ("low on memory", "Ray"))  # fmt: skip
    return f"{next((name for words, name in by if words in clue.words), 'the kernel')} says so"


def _task_ended(clue: Clue, log: LogFacts) -> Finding:
    """What Slurm says of tasks that are ranks. It does not say which of several came first."""
    alone = set(log.first_ends) == set(clue.numbers) and len(clue.numbers) == 1
    return from_line(
        clue,
        f"ended badly: {clue.operation}",
        clue.numbers,
        LIKELY if alone else POSSIBLE,
        "Slurm says so, and of no other rank"
        if alone
        else "Slurm says so; which of several was first it does not show",
        Prescription(
            "mend-the-first-failure",
            change=f"look at the output of {named(clue.numbers)} before it ended, and at dmesg (out of memory?)",
        ),
        specificity=15,
    )


def _said_to_have_ended(clue: Clue) -> Finding:
    """In a launcher's words: tasks, processes and local ranks are not always ranks. Who prints its own crash is one."""
    crashed = clue.rank >= 0 and "," not in clue.operation
    by_slurm = next((cure for reason, cure in _BY_SLURM.items() if reason in clue.operation), "")
    return from_line(
        clue,
        f"crashed: {clue.operation}" if crashed else _ended_words(clue.operation),
        who(clue) if crashed else (),
        LIKELY if crashed else POSSIBLE,
        "it says so itself" if crashed else "the launcher says so; whether it was the first the log does not show",
        Prescription(
            "mend-the-first-failure",
            change=by_slurm or f"look at what it printed before, and {_beside(clue.operation)}",
        ),
        specificity=12,
    )


_BY_LIMIT = re.compile(r"^(?:STEP|JOB) .{1,80}(?:TIME LIMIT|PREEMPTION|REQUEUE)", re.IGNORECASE)
_BY_SLURM = {  # what Slurm says that it ended a job for -> what is to be done
    "TIME LIMIT": "ask for more time, or save before it is over (--signal) and go on from there",
    "PREEMPTION": "let Slurm start it again (--requeue), and save on its signal",
    "NODE FAILURE": "see slurmctld's log for the host that failed, leave it out (--exclude), and start again from the last save",
}
_BY_SIGNAL = re.compile(r"(?:return code = |exitcode: )-(\d{1,3})\b|\bsignal (\d{1,3})\b")
_LOOK_AT = {
    SIGKILL: "at dmesg (out of memory?)",
    7: "at `df -h /dev/shm`: SIGBUS mostly comes of shared memory that is full, else of a mapped file that was cut off",
    11: "where it crashed: PYTHONFAULTHANDLER=1 prints the stack at a SIGSEGV",
}


def _beside(operation: str) -> str:
    """What is worth a look, by the signal of which a process died."""
    found = _BY_SIGNAL.search(operation)
    return _LOOK_AT.get(int(found[1] or found[2]) if found else SIGKILL, "at dmesg (out of memory?)")


def _ended_words(operation: str) -> str:
    by_slurm = operation.startswith(("STEP ", "JOB "))
    return f"Slurm ended the job: {operation.lower()}" if by_slurm else f"a process ended badly: {operation}"


def _ended(ends: dict[int, RankEnd], left_alone: Collection[int], crash: Clue | None) -> Finding:
    """Who ended in the first second. Torchrun calls one of them the root cause; which was first it does not know either. Those
    who print that a peer was gone ended after it, where others did not."""
    after = sorted(ends.keys() & set(left_alone))
    if len(after) == len(ends):
        after = []
    ends = {rank: end for rank, end in ends.items() if rank not in after}
    ways = {_way(end): end.signal for end in ends.values()}
    beside = {number: what for number, what in _LOOK_AT.items() if number in ways.values()}
    look = "".join(f", and {what}" for what in beside.values())
    alone = len(ends) == 1
    first = (
        "it names whoever ended first, which is not always the cause"
        if not after
        else (f"{named(after)} ended in the same second and had lost a peer")
    )
    if alone and crash is not None:
        return _crashed(next(iter(ends)), crash)
    return Finding(
        title=f"ended with {' and '.join(ways)}",
        ranks=tuple(ends),
        confidence=LIKELY if alone and SIGABRT not in ways.values() else POSSIBLE,  # gloo aborts innocent ranks
        why=f"as torchrun lists it; {first if alone else 'which of them was first it does not show'}",
        prescriptions=(Prescription("mend-the-first-failure", change=f"look at the output of {named(ends)}{look}"),),
    )


def _way(end: RankEnd) -> str:
    if not end.signal:
        return f"exit code {end.exit_code}"
    name = SIGNALS.get(end.signal, "")
    return f"signal {end.signal} ({name})" if name else f"signal {end.signal}"


def _crashed(rank: int, crash: Clue) -> Finding:
    """The one rank that ended by the signal of the only crash that faulthandler tells of."""
    number = FAULTS[crash.operation]
    inside = f" in {crash.inside}, called" if crash.inside else ""
    where = f"{inside} at {crash.site.short}" if crash.site else inside.removesuffix(", called")
    return Finding(
        title=f"died of {SIGNALS.get(number, f'signal {number}')}{where}",
        ranks=(rank,),
        confidence=LIKELY,
        place=crash.site,
        evidence={"line of the log": crash.line_number, "words": crash.words[:300], "signal": number},
        why=f"line {crash.line_number} of the log: faulthandler prints where a process crashed and not which rank it is, and "
        f"torchrun lists rank {rank} alone with that signal; the other ranks lost it",
        prescriptions=(
            Prescription(
                "mend-the-first-failure",
                change="look at what is handed to native code"
                + (f" at {crash.site.short}" if crash.site else "")
                + ": addresses, sizes and types that it does not check",
            ),
        ),
    )


def _left_behind(clue: Clue) -> Finding:
    """Torchrun's agents wait for each other when their ranks have ended."""
    waited = f"{clue.numbers[0]} s" if clue.numbers else "its time"
    return replace(
        from_line(
            clue,
            f"torchrun on one host waited {waited} at its end for another host that did not come",
            (),
            POSSIBLE,
            "its own ranks had ended before: it follows from what the other host did, which the log does not show",
            Prescription(
                "record-the-job", change="look at the output of the other hosts: their ranks still ran, or were gone"
            ),
            specificity=0,
        ),
        severity=NOTE,
    )


def _peer_gone(found: list[Clue]) -> Finding:
    innocent = sorted({clue.rank for clue in found if clue.rank >= 0})
    if all(any(word in clue.words for word in OF_THE_STORE) for clue in found):
        return _store_gone(found[0], innocent)
    finding = from_line(
        found[0],
        f"a peer has left, or did not come, while {named(innocent) if innocent else 'others'} still waited",
        (),
        POSSIBLE,
        "whoever printed this is not the one that left",
        Prescription(
            "record-the-job", change="look for a rank that printed nothing; distdoctor run would have named it"
        ),
        specificity=0,
    )
    finding.evidence["innocent ranks"] = innocent
    return finding


def _store_gone(clue: Clue, still_there: list[int]) -> Finding:
    """Torch warns of it whenever the process that serves the store ends first, at the end of a healthy job as well."""
    finding = from_line(
        clue,
        f"the job's store was shut down while {named(still_there) if still_there else 'other ranks'} still ran",
        (),
        POSSIBLE,
        "rank 0, or torchrun on its host, serves it and ended before them: harmless where the training had finished, else look "
        "at what it printed last",
        Prescription("record-the-job", change="call destroy_process_group() on every rank after a last barrier"),
        specificity=0,
    )
    return replace(finding, severity=WARNING)


def _independent(verdict: Verdict, incident: Incident) -> Iterator[Incident]:
    """Ranks that raised something else, in words of their own: nothing shows that they did so because of the first."""
    alike: dict[tuple[str, SourceLine], list[Ending]] = {}
    for ending in failures(verdict.endings):
        if incident.ranks and ending.how == RAISED and ending.rank not in incident.ranks:
            alike.setdefault((ending.kind, ending.site), []).append(ending)
    for endings in list(alike.values())[:MOST_INDEPENDENT]:
        first, ranks = endings[0], tuple(ending.rank for ending in endings)
        yield replace(
            incident,
            ranks=ranks,
            at_ns=first.at_ns,
            ending=first,
            also=tuple(endings[1:]),
            waiting=(),
            key=end_of(first.rank),
        )


def _unknown(incident: Incident) -> Finding:
    """Every failure on record is an echo."""
    first = incident.ending
    assert first is not None
    victims = sorted((first.rank, *(ending.rank for ending in incident.also)))
    return Finding(
        title="a rank was lost, and the recording does not show which",
        confidence=incident.confidence,
        stalls=incident.stalls,
        place=first.site,
        places=(Place(first.site, tuple(victims), "failed because a peer was gone"),),
        evidence={"exception": first.words, "failed_after_it": victims, "traceback": first.traceback},
        why=f"{named(victims)} failed because a peer was gone or late ({' '.join(first.words.split())[:160]}); how "
        "that peer ended is not on record",
        prescriptions=(
            Prescription(
                "mend-the-first-failure",
                change="find the rank that logged no error: check its host's log, `dmesg`, the scheduler",
            ),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _finding(verdict: Verdict, incident: Incident) -> Finding:
    ending = incident.ending
    assert ending is not None
    stuck = [call for wait in incident.waiting for call in wait.calls]
    place = ending.site or _last_site(verdict, ending.rank)
    if ending.kind == LEFT_PROMPT:  # it is raised at the line after the one that asked
        place = prompt_before(verdict.recording.sources, place) or place
    guessed = (
        ending.printed or ending.how == VANISHED or (_is_killed(ending) and _kernel_kills(verdict, ending) is None)
    )
    return Finding(
        title=_title(verdict, ending, len(incident.ranks)),
        ranks=incident.ranks,
        confidence=LIKELY if guessed else CERTAIN,
        stalls=incident.stalls,
        place=place,
        places=(
            *([Place(place, incident.ranks, _role(ending))] if place else []),
            *by_site(verdict, stuck),
            *decision_places(incident.decision, {place}),
        ),
        evidence={
            "exception": ending.words,
            "exit_code": ending.exit_code,
            "signal": ending.signal,
            "steps": verdict.timeline(ending.rank).steps if ending.rank in verdict.facts.timelines else None,
            "traceback": ending.traceback,
            "waiting_ranks": sorted(call.rank for call in stuck),
            "failed_after_it": _echoes(verdict, incident),
        },
        why=_why(verdict, incident, ending),
        prescriptions=(_cure(verdict, ending, place, incident.ranks),),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _is_killed(ending: Ending) -> bool:
    return ending.how == SIGNALLED and ending.signal == SIGKILL


def _kernel_kills(verdict: Verdict, ending: Ending) -> int | None:
    """How many processes the kernel had just killed for lack of memory, by its own count; None: not known."""
    end = verdict.recording.job.ends.get(ending.rank)
    return end.kernel_kills if end is not None else None


def _title(verdict: Verdict, ending: Ending, ranks: int) -> str:
    if ending.how == RAISED and ending.kind == LEFT_PROMPT:
        return "was quit at a prompt of pdb (BdbQuit)"
    if ending.how == RAISED:
        kind, _, words = ending.words.partition(": ")
        words = " ".join(words.split())
        return f"raised {kind}: {words[:160]}{' ...' if len(words) > 160 else ''}" if words else f"raised {kind}"
    if _is_killed(ending):
        kills = _kernel_kills(verdict, ending)
        if kills is None:
            return "was killed by SIGKILL, which the kernel's out-of-memory killer or a process sent"
        if kills == 0:
            return "was killed by a SIGKILL that a process sent, not the OOM killer"
        return "was killed by SIGKILL, most likely by the kernel's out-of-memory killer"
    if ending.how == SIGNALLED:
        return f"died of {SIGNALS.get(ending.signal, f'signal {ending.signal}')}"
    if ending.how == VANISHED:
        return "vanished without an error, and the others lost it"
    code = "a failure" if ending.exit_code is None else f"exit code {ending.exit_code}"
    return f"ended with {code}" if ranks == 1 else f"ended with {code} each"


def _role(ending: Ending) -> str:
    if ending.how == RAISED:
        left = ending.kind == LEFT_PROMPT
        return "opens the prompt" if left else f"raised {ending.kind}"
    return "last seen here"


def _why(verdict: Verdict, incident: Incident, ending: Ending) -> str:
    words = []
    if len(incident.ranks) > 1:
        words.append(f"{named(incident.ranks)} failed the same way, rank {ending.rank} first")
    elif ending.how == VANISHED:
        words.append(f"rank {ending.rank} is the only rank whose end is not on record")
    elif verdict.recording.world_size > 1:
        others = {one.rank for one in failures(verdict.endings) if one.how == RAISED} - set(incident.ranks)
        first = next(failures(verdict.endings)).rank == ending.rank
        alone = (
            f"on its own; {named(sorted(others))} raised a different error independently" if others else "on its own"
        )
        words.append(f"rank {ending.rank} failed {'first, ' if first else ''}{alone}")
    if _is_killed(ending) and _kernel_kills(verdict, ending) == 0:
        counter = verdict.recording.job.ends[ending.rank].kernel_counter
        words.append(
            f"neither the launcher nor distdoctor sent that signal, and {counter} counts no out-of-memory kill"
        )
    elif _is_killed(ending):
        words.append(
            "neither the launcher nor distdoctor sent that signal; `dmesg` or the container's memory.events can confirm it"
        )
    stuck = sorted({call.rank for wait in incident.waiting for call in wait.calls})
    echoes = _echoes(verdict, incident)
    waited = f"{named(stuck)} {'was' if len(stuck) == 1 else 'were'} waiting for it"
    if stuck and stuck == echoes:
        words.append(f"{waited}, and failed afterwards because it was gone")
    else:
        words += [waited] if stuck else []
        words += [f"{named(echoes)} failed afterwards because a peer was gone"] if echoes else []
    if ending.printed:
        missed = verdict.progress.missed_by(ending.rank) if verdict.progress is not None else None
        waits = f", where {named(missed.waiting)} wait for it in {missed.call.words}" if missed is not None else ""
        words.append(f"the log says so, beside dumps{waits}")
    if ending.traceback:
        words.append(f"its traceback is in the run folder ({ending.traceback})")
    return "; ".join(words)


def _echoes(verdict: Verdict, incident: Incident) -> list[int]:
    """Ranks that failed because this one was gone."""
    return sorted(rank for rank, other in verdict.endings.items() if other.victim and rank not in incident.ranks)


def _last_site(verdict: Verdict, rank: int) -> SourceLine:
    timeline = verdict.facts.timelines.get(rank)
    return timeline.last_site if timeline is not None else SourceLine()


def _cure(verdict: Verdict, ending: Ending, place: SourceLine, ranks: tuple[int, ...]) -> Prescription:
    if _is_killed(ending) and _kernel_kills(verdict, ending) == 0:
        return Prescription(
            "mend-the-first-failure",
            change="find out what kills processes on that host: the scheduler, a watchdog, `kill -9`",
        )
    if _is_killed(ending) and _kernel_kills(verdict, ending) is None:
        return Prescription(
            "mend-the-first-failure",
            change=f"search `dmesg` on the host of rank {ending.rank}: if the kernel killed it for lack of memory, lower what "
            "a rank and its workers hold; else find out what sends the signal",
        )
    if _is_killed(ending):
        return Prescription("lower-host-memory")
    if ending.how == VANISHED:
        return Prescription(
            "mend-the-first-failure",
            change=f"search `dmesg` and the scheduler's log on its host for rank {ending.rank}",
        )
    statement = statement_at(verdict.recording.sources, place) if place else ""
    where = f" at {at(place)}" if place else ""
    if ending.kind == LEFT_PROMPT:
        return Prescription(
            "mend-the-first-failure",
            change=f"remove the breakpoint{where}, or debug one rank with torch.distributed.breakpoint(rank)",
        )
    line = f": `{statement[:100]}`" if statement else ""
    if len(ranks) > 1:
        return Prescription(
            "mend-the-first-failure",
            change=f"fix the error{where}{line}: {named(ranks)} failed the same way, each on its own",
        )
    echoes = [rank for rank, other in verdict.endings.items() if other.victim]
    follows = "; the other ranks failed as a consequence" if echoes else ""
    return Prescription("mend-the-first-failure", change=f"fix the error on rank {ending.rank}{where}{line}{follows}")


def sick() -> Recording:
    script = recording(ranks=4)
    for step in range(4):
        if step == 2:
            script.raises(1, "ValueError: empty batch", site="train.py:33 load_batch")
        script.collective("all_reduce", [8], site="train.py:41 train_step").step()
    return script.finished(survivors="fail")


def healthy() -> Recording:
    """Everybody was interrupted by the user while they waited for a slow rank."""
    script = recording(ranks=4)
    script.collective("all_reduce", [8], site="train.py:41 train_step").step()
    return script.raises(range(4), "KeyboardInterrupt: ", site="train.py:41 train_step").finished()
